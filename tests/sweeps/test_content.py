"""Contents: the same files give the same digest anywhere, and arrive as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfold.errors import ConfigError, ModelLoadError
from onnxfold.graph.files.load import load
from onnxfold.sweeps import content as module
from onnxfold.sweeps.content import content_of


def _external(folder: Path, location: str = "w.bin") -> Path:
    """Write a model whose weight lies in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    w = numpy_helper.from_array(np.arange(64, dtype=np.float32).reshape(8, 8), "w")
    x, y = (helper.make_tensor_value_info(n, 1, [1, 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    if location != "w.bin":
        text = (folder / "m.onnx").read_bytes().replace(b"w.bin", location.encode())
        (folder / "m.onnx").write_bytes(text)
    return folder / "m.onnx"


def test_weights_and_tokenizer_travel_with_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 100)  # several pieces
    path = _external(tmp_path / "a" / "onnx")
    (tmp_path / "a" / "tokenizer.json").write_text("{}")
    (tmp_path / "a" / "secret.txt").write_text("not read")
    content = content_of(path)
    assert [file.place for file in content.files] == ["onnx/m.onnx", "onnx/w.bin", "tokenizer.json"]
    pieces = list(content.pieces())
    assert len(pieces) > 4
    put = content.put_into(tmp_path / "store", pieces)
    assert put == tmp_path / "store" / content.digest / "onnx" / "m.onnx"
    assert (load(put).weight("w") == np.arange(64).reshape(8, 8)).all()
    assert content_of(put).digest == content.digest
    put.touch()
    before = put.stat().st_mtime_ns
    assert content.put_into(tmp_path / "store", []) == put  # it lies there already
    assert put.stat().st_mtime_ns == before
    (tmp_path / "a" / "onnx" / "w.bin").write_bytes(bytes(256))
    assert content_of(path).digest != content.digest


def test_a_folder_travels_whole(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.png").write_bytes(b"a")
    (folder / "empty").write_bytes(b"")
    content = content_of(folder)
    assert content.sha256 == content.digest
    pieces = list(content.pieces())
    assert len(pieces) == 1  # small files share one
    put = replace(content, files=()).put_into(tmp_path / "store", pieces)
    assert put.name == "images"
    assert (put / "deep" / "a.png").read_bytes() == b"a"
    assert (put / "empty").read_bytes() == b""


def test_a_file_that_changes_is_found(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"before")
    content = content_of(path)
    path.write_bytes(b"after!")
    with pytest.raises(ModelLoadError, match="changed while it was read"):
        list(content.pieces())
    path.unlink()
    with pytest.raises(ModelLoadError, match="cannot be read"):
        list(content.pieces())


def test_what_arrives_damaged_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"what was sent")
    content = content_of(path)
    (piece,) = content.pieces()
    for wrong in (piece.replace(b"sent", b"lost"), piece[:-1]):
        with pytest.raises(ModelLoadError, match=r"'data.npz' did not arrive as it was sent"):
            content.put_into(tmp_path / "store", [wrong])
    assert list((tmp_path / "store").iterdir()) == []
    assert content.put_into(tmp_path / "store", [piece]).read_bytes() == b"what was sent"


def test_weights_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    path = _external(tmp_path / "model", "../.b")
    (tmp_path / ".b").write_bytes(bytes(256))
    with pytest.raises(ConfigError, match="lies in another folder"):
        content_of(path)
