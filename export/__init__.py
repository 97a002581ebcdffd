"""Exporters of folded models to the formats of edge runtimes."""
