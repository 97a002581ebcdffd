"""The inputs that a fold is run on, and labelled samples that judge it."""
