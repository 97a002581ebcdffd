"""Benchmarks, run as modules: for instance ``python -m benchmarks.fold_time``."""
