"""Passes that repair the activations after a merge."""
