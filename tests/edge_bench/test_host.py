"""Measuring on this machine, and the script that does it here and elsewhere."""

import ast
import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfold.edge_bench import measure_script
from onnxfold.edge_bench.job import prepare_job
from onnxfold.edge_bench.runners.linux import OPSET, SCRIPT, older_twin, pack, rows, run_here
from testing import models
from tests.edge_bench.jobs import small_job


def test_every_interpreter_is_a_row(tmp_path: Path) -> None:
    job = small_job(tmp_path, threads=2)
    found = {row.runtime.split()[0]: row for row in run_here(job)}
    assert "onnxruntime" in found
    for row in found.values():
        assert (row.status, row.method, row.device, row.threads) == ("ok", "measured-device", "host", 2)
        assert row.latency_low_s is not None
        assert row.latency_s is not None
        assert row.latency_high_s is not None
        assert 0 < row.latency_low_s <= row.latency_s <= row.latency_high_s
        assert (row.warm_up, row.repeats, row.compared_inputs) == (1, 5, 3)
        assert row.max_relative_error is not None
        assert row.max_relative_error < 1e-5
        assert row.ram_bytes is not None
        assert row.flash_bytes is not None
        assert row.details["python"] == ".".join(map(str, sys.version_info[:3]))
    assert not list(job.work.glob("tmp*"))


def test_layouts_are_brought_back(tmp_path: Path) -> None:
    """A network with feature maps as outputs, which TFLite has channels last."""
    pytest.importorskip("ai_edge_litert")
    onnx.save(models.autoencoder(0), tmp_path / "maps.onnx")
    job = prepare_job(tmp_path / "maps.onnx", tmp_path, samples=2, repeats=1, warm_up=0)
    assert job.reference[0][0].ndim == 4
    assert {row.runtime.split()[0]: row.status for row in run_here(job)} == {
        "ai_edge_litert": "ok",
        "onnxruntime": "ok",
    }


def test_wrong_outputs_are_no_measurement(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    wrong = replace(job, reference=[[a + 0.1 * np.abs(a).max() for a in arrays] for arrays in job.reference])
    for row in run_here(wrong):
        assert row.status == "failed"
        assert "outputs differ from onnxruntime's" in row.reason
        assert row.latency_s is None


def test_an_operator_that_tflite_lacks_leaves_onnxruntime(tmp_path: Path) -> None:
    model = models.chain_conv(0)
    view = model.graph
    view.node.append(onnx.helper.make_node("NonZero", [view.output[0].name], ["where"], name="where"))
    view.output.append(onnx.helper.make_tensor_value_info("where", onnx.TensorProto.INT64, None))
    onnx.save(model, tmp_path / "odd.onnx")
    job = prepare_job(tmp_path / "odd.onnx", tmp_path, samples=1, repeats=1, warm_up=0)
    found = {row.runtime.split()[0]: row for row in run_here(job)}
    assert found["onnxruntime"].status == "ok"
    assert found["TFLite"].status == "failed"
    assert "'where'" in found["TFLite"].reason


def test_an_interpreter_without_time_fails(tmp_path: Path) -> None:
    for row in run_here(small_job(tmp_path), timeout_s=0.001):
        assert row.status == "failed"
        assert "no result within 0.001 s" in row.reason


def test_the_script_is_python_3_6_and_needs_nothing_of_onnxfold() -> None:
    source = inspect.getsource(measure_script)
    tree = ast.parse(source, feature_version=(3, 6))
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    assert not {name for name in imported if name.startswith("onnxfold")}
    # Python 3.7 brought these; 3.9 made list and dict generic.
    assert "capture_output" not in source
    assert not {"list", "dict", "tuple"} & {
        n.value.id for n in ast.walk(tree) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)
    }


def test_a_machine_without_interpreters(tmp_path: Path) -> None:
    """Python without its site-packages has none."""
    job = small_job(tmp_path)
    package = pack(job, timeout=10)
    for name, content in package.files.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, "-S", "-I", str(tmp_path / SCRIPT), str(tmp_path / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = measure_script.last_measurement(done.stdout)
    assert answer is not None
    (row,) = rows(job, "board", package, answer)
    assert row.status == "unavailable"
    assert row.reason.startswith("no interpreter found: pip install")


def test_the_last_mark_counts() -> None:
    lines = [
        "Welcome",
        f"{measure_script.MARK} {json.dumps({'a': 1})}",
        f"{measure_script.MARK} {json.dumps({'a': 2})}",
    ]
    assert measure_script.last_measurement("\n".join([*lines, "bye"])) == {"a": 2}
    assert measure_script.last_measurement("nothing") is None


def test_an_older_twin_computes_the_same(tmp_path: Path) -> None:
    model = models.chain_conv(0)
    onnx.save(model, tmp_path / "new.onnx")
    content = older_twin(tmp_path / "new.onnx")
    assert content is not None
    twin = onnx.load_from_string(content)
    assert {o.version for o in twin.opset_import if not o.domain} == {OPSET}
    feeds = models.random_input(model, 0)
    np.testing.assert_allclose(models.run(twin, feeds)[0], models.run(model, feeds)[0], rtol=1e-6)
    onnx.save(twin, tmp_path / "old.onnx")
    assert older_twin(tmp_path / "old.onnx") is None
