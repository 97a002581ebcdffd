"""C arrays, float16, int8, onnx2tf."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxfold.errors import ExportError
from onnxfold.export import draft, export_model, to_c_array, to_tflite
from onnxfold.export.draft import c_identifier
from tests.export.test_tflite import DATA, chain

pytest.importorskip("ai_edge_litert")

_PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include "{header}"
int main(void) {{
  if ((uintptr_t)model_data % 16 != 0 || model_data_len != sizeof(model_data)) return 1;
  fwrite(model_data, 1, model_data_len, stdout);
  return 0;
}}
"""


@pytest.mark.parametrize(("compiler", "suffix"), [("gcc", "c"), ("g++", "cpp")])
def test_c_array_compiles_to_the_same_bytes(compiler: str, suffix: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    model = chain("conv", "relu", "flatten", "gemm")
    header = to_c_array(model, tmp_path / "model_data.h")
    source = tmp_path / f"main.{suffix}"
    source.write_text(_PROGRAM.format(header=header.name))
    subprocess.run([compiler, "-Wall", "-Werror", source, "-o", tmp_path / "main"], check=True)
    content = subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout
    assert content == to_tflite(model, tmp_path / "model.tflite").read_bytes()


@pytest.mark.parametrize(("name", "identifier"), [("model_data", "model_data"), ("a-b.c", "a_b_c"), ("2x", "_2x")])
def test_identifiers(name: str, identifier: str) -> None:
    assert c_identifier(name) == identifier


def test_float16_halves_the_weights(tmp_path: Path) -> None:
    full = export_model(DATA / "lenet5.onnx", tmp_path / "full.tflite")
    half = export_model(DATA / "lenet5.onnx", tmp_path / "half.tflite", dtype="float16")
    assert half.size_bytes < 0.55 * full.size_bytes
    assert full.parity["max_rel_error"] < half.parity["max_rel_error"] <= 2e-3


def test_weights_beyond_float16_stay(tmp_path: Path) -> None:
    model = chain("conv", "flatten", "gemm")
    before = export_model(model, tmp_path / "net.tflite", dtype="float16").operators["DEQUANTIZE"]
    (weight,) = [t for t in model.graph.initializer if t.name == "gemm_0_w"]
    values = np.frombuffer(weight.raw_data, np.float32).copy()
    values[0] = 1e6
    weight.raw_data = values.tobytes()
    report = export_model(model, tmp_path / "net.tflite", dtype="float16")
    assert report.operators.get("DEQUANTIZE", 0) == before - 1


def test_int8(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_quantizer")
    report = export_model(DATA / "lenet5.onnx", tmp_path / "net.tflite", dtype="int8")
    assert report.size_bytes < 0.35 * (DATA / "lenet5.onnx").stat().st_size
    # Ranges averaged over samples instead of taken over all cut off the largest logits: an error of 0.6.
    assert report.parity["max_rel_error"] <= 0.1
    assert any("'image' is int8" in note for note in report.notes)


def _stand_in(tmp_path: Path, body: str) -> Path:
    """Write a program that is called as onnx2tf is."""
    program = tmp_path / "onnx2tf"
    program.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{body}")
    program.chmod(0o755)
    return program


def test_onnx2tf_gets_a_copy_and_its_failure_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "lenet5.onnx"
    source.write_bytes((DATA / "lenet5.onnx").read_bytes())
    body = "pathlib.Path(sys.argv[2]).write_text('gone'); print('no such operator', file=sys.stderr); sys.exit(3)"
    monkeypatch.setenv(draft.PROGRAM, str(_stand_in(tmp_path, body)))
    with pytest.raises(ExportError, match="onnx2tf fails: no such operator"):
        export_model(source, tmp_path / "net.tflite", backend="onnx2tf")
    assert source.read_bytes() == (DATA / "lenet5.onnx").read_bytes()
    assert not (tmp_path / "net.tflite").exists()


def test_onnx2tf_result_is_checked_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = to_tflite(DATA / "lenet5.onnx", tmp_path / "ready.tflite")
    body = (
        "out = pathlib.Path(sys.argv[4]); out.mkdir(); "
        f"(out / 'model_float32.tflite').write_bytes(pathlib.Path({str(ready)!r}).read_bytes())"
    )
    monkeypatch.setenv(draft.PROGRAM, str(_stand_in(tmp_path, body)))
    report = export_model(DATA / "lenet5.onnx", tmp_path / "net.tflite", backend="onnx2tf")
    assert (report.backend, report.inputs) == ("onnx2tf", {"image": "NHWC"})
    with pytest.raises(ExportError):  # the file of another network must not pass
        export_model(chain("conv", "relu"), tmp_path / "other.tflite", backend="onnx2tf")


def test_auto_takes_the_direct_writer_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(draft.PROGRAM, str(_stand_in(tmp_path, "sys.exit(1)")))
    assert export_model(chain("conv"), tmp_path / "net.tflite", backend="auto").backend == "direct"


def test_missing_onnx2tf_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(draft.PROGRAM, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ExportError, match="onnx2tf is not installed"):
        export_model(chain("conv"), tmp_path / "net.tflite", backend="onnx2tf")
