"""Passes that write products between two weights."""
