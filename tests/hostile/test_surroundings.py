"""What lies around a run: names that no system takes, a working folder that is gone, files that may not be read."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import onnx
import pytest

from testing.models import mlp
from tests.files.command import FAST, onnxfold, write_model

LONG = "x" * 300


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_model(tmp_path / "in.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep", "in.onnx", "--out", LONG),
        ("sweep", "--out", LONG),
        ("demo", "--out", LONG),
        ("demo", "--copy", LONG),
    ],
)
def test_a_name_that_is_too_long_is_one_line(arguments: tuple[str, ...], folder: Path) -> None:
    done = onnxfold(*arguments)
    assert done.code in (1, 2)
    assert done.stderr.startswith("error: '")
    assert "file name too long" in done.stderr.lower()
    assert done.stderr.count("\n") == 1
    assert "bug" not in done.stderr
    assert os.listdir(folder) == ["in.onnx"]


@pytest.mark.parametrize("command", ["fold", "export", "compare", "inspect", "sweep", "bench", "merge", "demo"])
def test_a_zero_byte_in_an_argument_is_one_line(command: str) -> None:
    done = onnxfold(command, "a\0b")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "an argument contains a zero byte" in done.stderr


def test_a_working_folder_that_is_gone_is_one_line(folder: Path) -> None:
    (folder / "gone").mkdir()
    os.chdir(folder / "gone")
    (folder / "gone").rmdir()
    done = onnxfold("fold", folder / "in.onnx", "o.onnx", *FAST)
    assert (done.code, done.stderr) == (
        2, "error: the working folder does not exist any more: change to another one\n"
    )  # fmt: skip


def test_weights_that_may_not_be_read_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(folder / "beside.onnx", weights_in="w.bin")
    opened = builtins.open

    def forbidden(path: Any, *args: Any, **kwargs: Any) -> Any:
        if str(path).endswith("w.bin"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", forbidden)
    done = onnxfold("inspect", "beside.onnx")
    assert done.code == 1
    assert done.stderr.startswith("error: '")
    assert done.stderr.endswith("w.bin' cannot be used: permission denied\n")


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("form", ["tflite", "arduino"])
def test_a_zero_byte_in_a_name_is_not_exported(side: str, form: str, folder: Path) -> None:
    model = mlp(0)
    old = getattr(model.graph, side)[0].name
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["a\0b" if name == old else name for name in names]
    getattr(model.graph, side)[0].name = "a\0b"
    onnx.save(model, "zero.onnx")
    done = onnxfold("export", "zero.onnx", "o.tflite" if form == "tflite" else "o", "--format", form)
    assert done.code == 1
    assert done.stderr.startswith("error: cannot export: the name 'a\\x00b' holds a zero byte")


def test_a_batch_of_no_samples_is_compared_with_nothing(folder: Path) -> None:
    model = mlp(0)
    for info in (*model.graph.input, *model.graph.output):
        dim = info.type.tensor_type.shape.dim[0]
        dim.Clear()
        dim.dim_value = 0
    onnx.save(model, "none.onnx")
    done = onnxfold("compare", "none.onnx", "none.onnx")
    assert (done.code, done.stderr) == (0, "")
    assert "not known" in done.stdout
