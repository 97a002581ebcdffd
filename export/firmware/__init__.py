"""Projects that run a model on a microcontroller board."""
