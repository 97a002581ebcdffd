"""Exporters of folded models to the formats of edge runtimes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfold.export.api import export_model, to_c_array, to_tflite
    from onnxfold.export.draft import ExportReport

__all__ = ["ExportReport", "export_model", "to_c_array", "to_tflite"]


def __getattr__(name: str) -> Any:
    """Load the exporter when it is used: its runtimes are optional and heavy."""
    if name in __all__:
        from onnxfold.export import api

        return getattr(api, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
