"""Channels that may only go together, and groups that may be rotated."""
