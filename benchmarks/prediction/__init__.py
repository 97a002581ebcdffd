"""Prediction of the agreement with the original on data: its calibration and validation."""
