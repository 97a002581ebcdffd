"""Passes that write products between two weights, and remove those that stayed unused."""
