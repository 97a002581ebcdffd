"""A small model to export."""

from pathlib import Path

import onnx
import pytest

from tests.export.test_tflite import chain


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the file of a convolution with a ReLU."""
    onnx.save(chain("conv", "relu"), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"
