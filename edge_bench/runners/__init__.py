"""Runners that measure a model on a device, one file each."""
