"""Latency in onnxruntime: of whole models, timed in turn, and of their layers."""
