"""Passes that merge channels, and passes that rescale rows before the merge."""
