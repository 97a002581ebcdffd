"""Sweeps that are killed, on more workers, and on 64 simulated ones."""
