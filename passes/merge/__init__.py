"""Passes that merge channels, and those that bring their rows into the units in which they are merged."""
