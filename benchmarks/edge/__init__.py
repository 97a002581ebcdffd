"""Comparison with the published device table."""
