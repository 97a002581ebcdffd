"""Shapes and types of tensors, and constants that follow from them."""
