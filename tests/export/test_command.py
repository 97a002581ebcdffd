"""``onnxfold export``: what it prints, writes and refuses."""

import json
from pathlib import Path

import onnx
import pytest

from onnxfold.errors import ConfigError, ExportError
from tests.export.command import run
from tests.export.test_tflite import chain

pytest.importorskip("ai_edge_litert")


def test_report_and_terminal_state_layout_and_errors(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "net.tflite", "--report", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    assert "input 'x': NHWC" in done.output
    assert "max relative error" in done.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["backend"] == "direct"
    assert 0 <= report["parity"]["max_rel_error"] <= 1e-4
    assert (tmp_path / "net.tflite").stat().st_size == report["size_bytes"]


def test_what_was_not_checked_is_said(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "net.tflite", "--no-verify", "--keep-nchw-inputs")
    assert "not checked" in done.output
    assert "input 'x': NCHW" in done.output


def test_c_array(model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "model_data.h", "--format", "c-array").exit_code == 0
    assert "model_data_len = " in (tmp_path / "model_data.h").read_text()


def test_the_input_is_never_overwritten(model: Path) -> None:
    before = model.read_bytes()
    assert isinstance(run(model, model).exception, ConfigError)
    assert model.read_bytes() == before


def test_errors_exit_with_one(tmp_path: Path) -> None:
    model = chain("conv")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Strange", "com.example"
    onnx.save(model, tmp_path / "net.onnx")
    error = run(tmp_path / "net.onnx", tmp_path / "net.tflite").exception
    assert isinstance(error, ExportError)
    assert error.exit_code == 1
    assert not (tmp_path / "net.tflite").exists()
