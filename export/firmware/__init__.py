"""Firmware projects that hold a folded model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxfold.export.firmware.project import FirmwareReport, write_project

__all__ = ["FirmwareReport", "write_project"]


def __getattr__(name: str) -> Any:
    """Load the writer when it is used."""
    if name in __all__:
        from onnxfold.export.firmware import project

        return getattr(project, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
