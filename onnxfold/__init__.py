"""onnxfold."""
