"""What a network is run on: arrays that are given, noise, dead leaves, tokens, inverted images."""
