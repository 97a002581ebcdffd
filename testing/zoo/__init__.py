"""Published network layouts in torch, written from scratch, and their export to ONNX."""
