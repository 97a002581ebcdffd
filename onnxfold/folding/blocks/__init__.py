"""Residual blocks that are dropped whole."""
