"""ONNX graphs as differentiable functions in torch, which is an optional dependency.

Importing this package does not import torch; its modules `executor` and `operators` do.
"""
