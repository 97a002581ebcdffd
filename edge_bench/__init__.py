"""Edge benchmarks."""
