"""Measurements of a network that decide widths: what its outputs lose, and what its layers take."""
