"""Folding: scopes, methods, folds of one graph, and the search for a fidelity."""
