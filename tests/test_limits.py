"""Files that would take all memory, or never end: each is refused in one line, before anything is allocated."""

import os
from pathlib import Path

import onnx
import pytest

import onnxfold
from onnxfold.errors import ModelNotFoundError
from tests.models import mlp


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "pipe.onnx"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("function", [onnxfold.inspect, onnxfold.fold])
def test_a_fifo_is_refused_at_once(fifo: Path, function: object) -> None:
    with pytest.raises(ModelNotFoundError, match="is a FIFO, a device or a socket"):
        function(fifo)  # type: ignore[operator]


def test_compare_refuses_a_fifo_at_once(fifo: Path, tmp_path: Path) -> None:
    onnx.save(mlp(0), tmp_path / "a.onnx")
    for pair in ((fifo, tmp_path / "a.onnx"), (tmp_path / "a.onnx", fifo)):
        with pytest.raises(ModelNotFoundError, match="is a FIFO"):
            onnxfold.compare(*pair)
