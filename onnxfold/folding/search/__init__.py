"""Searches for the smallest model that keeps a fidelity, an accuracy or a latency."""
