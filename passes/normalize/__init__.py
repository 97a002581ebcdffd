"""Passes into the normal form that the channel analysis reads; the function stays the same."""
