"""Fidelity of one model to another, on held-out or given inputs, and accuracy on labels."""
