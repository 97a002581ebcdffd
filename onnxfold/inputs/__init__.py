"""Inputs to run a network on: given arrays, noise, dead leaves, tokens, inverted images."""
