"""Models as files: load, check, save."""
