"""Accuracy against bytes and milliseconds: folded, quantised, and both."""
