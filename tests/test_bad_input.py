"""Bad input gets one clear line, the exit code of the documentation, no output file, and an untouched input."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from testing import models
from tests.command_line import onnxfold


def _write(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, str(path))
    return path


def _good(folder: Path) -> Path:
    return _write(folder / "in.onnx", models.chain_conv(0))


def _missing(folder: Path) -> Path:
    return folder / "missing.onnx"


def _folder(folder: Path) -> Path:
    return folder


def _text(folder: Path) -> Path:
    path = folder / "in.onnx"
    path.write_text("this is not a model\n" * 20)
    return path


def _empty(folder: Path) -> Path:
    path = folder / "in.onnx"
    path.write_bytes(b"")
    return path


def _truncated(folder: Path) -> Path:
    path = _good(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def _old_opset(folder: Path) -> Path:
    model = models.chain_conv(0)
    model.opset_import[0].version = 6
    return _write(folder / "in.onnx", model)


def _short_weight(folder: Path) -> Path:
    model = models.chain_conv(0)
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    return _write(folder / "in.onnx", model)


def _nothing_to_fold(folder: Path) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])
    w = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "only")], "g", [x], [y], [w])
    return _write(folder / "in.onnx", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


CASES = {
    "missing file": (_missing, (), 2, "does not exist"),
    "folder": (_folder, (), 2, "is a folder"),
    "not onnx": (_text, (), 1, "not an ONNX model"),
    "empty": (_empty, (), 1, "not an ONNX model"),
    "truncated": (_truncated, (), 1, "truncated"),
    "old opset": (_old_opset, (), 1, "opset 6"),
    "short weight": (_short_weight, (), 1, "does not match its shape"),
    "nothing to fold": (_nothing_to_fold, (), 1, "nothing to fold"),
    "sparsity 0": (_good, ("--sparsity", 0), 2, "outside (0, 1)"),
    "sparsity 1": (_good, ("--sparsity", 1), 2, "outside (0, 1)"),
    "sparsity nan": (_good, ("--sparsity", "nan"), 2, "outside (0, 1)"),
    "sparsity word": (_good, ("--sparsity", "half"), 2, "half"),
    "ratio and sparsity": (_good, ("--sparsity", 0.5, "--channel-ratio", 0.5), 2, "exclude each other"),
    "unreachable": (_good, ("--sparsity", 0.9999), 1, "cannot be reached"),
    "too little": (_good, ("--channel-ratio", 0.001), 1, "nothing to fold"),
    "unknown method": (_good, ("--method", "magic"), 2, "unknown"),
    "unknown allocation": (_good, ("--allocation", "magic"), 2, "use one of global, uniform"),
    "ratio without group": (_good, ("--ratio", "nosuchnode=0.5"), 2, "matches no fold group"),
    "keep without group": (_good, ("--keep", "nosuchnode"), 2, "matches no fold group"),
    "ratio malformed": (_good, ("--ratio", "0.5"), 2, "GLOB=R"),
    "input shape of no input": (_good, ("--input-shapes", "nope:1,3"), 2, "not an input"),
    "round to 0": (_good, ("--round-to", 0), 2, "at least 1"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_line(case: str, tmp_path: Path) -> None:
    make, options, code, words = CASES[case]
    model = make(tmp_path)
    before = model.read_bytes() if model.is_file() else None
    files = sorted(tmp_path.iterdir())
    done = onnxfold("fold", model, tmp_path / "out.onnx", *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert sum(line.lower().startswith("error") for line in lines) == 1
    assert sorted(tmp_path.iterdir()) == files, "something was left behind"
    assert before is None or model.read_bytes() == before


def test_output_folder_does_not_exist(tmp_path: Path) -> None:
    done = onnxfold("fold", _good(tmp_path), tmp_path / "no" / "out.onnx")
    assert done.returncode == 2
    assert "does not exist" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_not_writable(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    done = onnxfold("fold", _good(tmp_path), locked / "out.onnx")
    assert done.returncode == 2
    assert "permission denied" in done.stderr


def test_output_is_a_folder(tmp_path: Path) -> None:
    done = onnxfold("fold", _good(tmp_path), tmp_path)
    assert done.returncode == 2
    assert "is a folder" in done.stderr


def test_output_is_the_input(tmp_path: Path) -> None:
    model = _good(tmp_path)
    before = model.read_bytes()
    done = onnxfold("fold", model, model)
    assert done.returncode == 2
    assert model.read_bytes() == before


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in onnxfold("fold", _missing(tmp_path), tmp_path / "out.onnx", "--debug").stderr


def test_data_of_the_wrong_kind(tmp_path: Path) -> None:
    model = _good(tmp_path)
    data = tmp_path / "data.npz"
    data.write_text("no zip")
    assert onnxfold("compare", model, model, "--data", data).returncode == 2
    np.savez(data, other=np.zeros((2, 3), np.float32))
    done = onnxfold("compare", model, model, "--data", data)
    assert done.returncode == 2
    assert "no array 'x'" in done.stderr
