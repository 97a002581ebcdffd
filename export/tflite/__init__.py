"""ONNX to TFLite, written directly on the schema that the runtimes publish."""
