"""Structures of language models: tables of words, projections of attention, residual branches."""
