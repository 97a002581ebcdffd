"""Latency of dense and folded networks in onnxruntime."""
