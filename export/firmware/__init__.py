"""Firmware projects that hold a folded model."""

from onnxfold.export.firmware.project import FirmwareReport, write_project

__all__ = ["FirmwareReport", "write_project"]
