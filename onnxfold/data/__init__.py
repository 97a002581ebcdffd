"""Bundled models and test images for the demo."""
