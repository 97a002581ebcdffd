"""Quantisation of a folded model to int8: QDQ ONNX, calibrated on the inputs that the model was folded on."""
