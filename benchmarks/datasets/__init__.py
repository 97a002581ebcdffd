"""Image data sets of the benchmarks."""
