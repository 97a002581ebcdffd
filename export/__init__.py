"""Exporters of folded models to the formats of edge runtimes."""

from onnxfold.export.api import export_model, to_c_array, to_tflite
from onnxfold.export.draft import ExportReport

__all__ = ["ExportReport", "export_model", "to_c_array", "to_tflite"]
