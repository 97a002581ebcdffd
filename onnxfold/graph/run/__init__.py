"""Runs of models and of single nodes in onnxruntime."""
