"""Passes that turn views, heads and shuffles into axes that the channel analysis reads."""
