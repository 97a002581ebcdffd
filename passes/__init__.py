"""Passes: one per file; a method is a composition of them."""
