"""Comparison of exported TFLite files with onnxruntime in several runtimes."""
