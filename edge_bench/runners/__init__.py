"""Means to measure a model on a device, one runner per file."""
