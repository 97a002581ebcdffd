"""Clusterings of channels, one file each."""
