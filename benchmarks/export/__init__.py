"""Exports to TFLite, held against onnxruntime in several runtimes."""
