"""Training of the reference networks."""
