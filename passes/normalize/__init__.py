"""Passes into the normal form: the same function, in the form that the analysis reads."""
