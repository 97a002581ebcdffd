"""What a model takes, and whether a device has it."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from onnxfold.budget.costs.memory import count_flash, count_ram
from onnxfold.edge_bench import job as arena_module
from onnxfold.edge_bench.job import measure_arena, needs, prepare_job, write_tflite
from onnxfold.export.firmware.need import read_tflite
from onnxfold.graph.files.load import load
from testing import models
from tests.edge_bench.jobs import small_job

needs_tflm = pytest.mark.skipif(find_spec("tflite_micro") is None, reason=f"no tflite-micro: {arena_module.INSTALL}")


@needs_tflm
def test_the_arena_holds_what_is_live_at_once(tmp_path: Path) -> None:
    """Convolution (4 x 12 x 12) and pooling (4 x 6 x 6) are the largest neighbours; both are floats."""
    job = small_job(tmp_path)
    counted = count_ram(load(job.onnx))
    assert counted == 4 * 4 * (12 * 12 + 6 * 6)
    write_tflite(job)
    found = measure_arena(job.tflite, 1, counted)
    assert isinstance(found, dict)
    assert counted <= found["head"] < counted + 1024
    assert 0 < found["tail"] < 16 << 10
    need = needs(job)
    assert need.activation_bytes == found["head"]
    assert found["tail"] <= need.table_bytes <= found["tail"] + 1024
    assert need.buffer_bytes == 4 * (12 * 12 + 5)
    assert need.ram_bytes == found["head"] + need.table_bytes + need.buffer_bytes
    assert f"on this machine the arena takes {sum(found.values()):,} bytes" in need.basis


@needs_tflm
def test_a_file_that_tflite_micro_rejects_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / "broken.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(64))
    found = measure_arena(tmp_path / "broken.tflite", 1, 1000)
    assert isinstance(found, str)
    assert found.startswith("tflite-micro does not run the model: ")
    assert "\n" not in found


def test_without_tflite_micro_the_plan_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "find_spec", lambda name: None)
    job = small_job(tmp_path)
    need = needs(job)
    assert need == replace(read_tflite(job.tflite).need, basis=need.basis)
    assert "pip install tflite-micro" in need.basis
    assert need.model_bytes == job.tflite.stat().st_size


def test_what_tflite_does_not_have_is_counted(tmp_path: Path) -> None:
    model = models.chain_conv(0)
    model.graph.node.append(onnx.helper.make_node("NonZero", [model.graph.output[0].name], ["where"], name="where"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("where", onnx.TensorProto.INT64, None))
    onnx.save(model, tmp_path / "odd.onnx")
    job = prepare_job(tmp_path / "odd.onnx", tmp_path, samples=1)
    need = needs(job)
    assert need.model_bytes == count_flash(load(job.onnx))
    assert need.activation_bytes == count_ram(load(job.onnx))
    assert not need.is_exact
    assert "counted on the graph, lower bounds" in need.basis
