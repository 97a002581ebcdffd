"""Partitions of channels: features, exact duplicates, clusterings."""
