"""ONNX to TFLite, written directly with the published schema."""
