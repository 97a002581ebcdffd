"""Networks that are merged."""
