"""Passes, one per file; a method is a sequence of them."""
