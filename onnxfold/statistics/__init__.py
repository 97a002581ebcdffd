"""Where activation statistics and model inputs come from."""
