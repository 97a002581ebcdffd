"""Benchmarks of folded models on edge devices."""
