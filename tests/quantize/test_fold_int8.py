"""Folds that end in int8: what lies on disk, how close it is, what the report says."""

from __future__ import annotations

import logging
import warnings
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from onnxfold import api
from onnxfold.api import FoldResult
from onnxfold.commands.run_demo import bundled_test_images
from onnxfold.errors import BudgetError
from onnxfold.folding import fold_model
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.html_report import render_html
from onnxfold.quantize.quantize import Quantized, quantize_int8
from testing import models
from testing.quick import quick_fold
from tests.command_line import fresh_onnxfold

LENET = Path(str(files("onnxfold.data") / "lenet5.onnx"))


@pytest.fixture(scope="module")
def quantized() -> FoldResult:
    """LeNet-5, quantised only."""
    return quick_fold(LENET, 0.0, samples=64, dtype="int8")


@pytest.fixture(scope="module")
def both() -> FoldResult:
    """LeNet-5, folded and quantised."""
    return quick_fold(LENET, 0.2, samples=64, dtype="int8")


def _accuracy(model: onnx.ModelProto | str | Path) -> float:
    images, labels = bundled_test_images()
    (scores,) = Session(model).run_in_batches({"image": images})
    return float((scores.argmax(axis=1) == labels).mean())


def _initializers(model: onnx.ModelProto) -> dict[str, Array]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_weights_are_int8_per_channel_in_seven_bits(quantized: FoldResult) -> None:
    arrays = _initializers(quantized.model)
    nodes = {n.output[0]: n for n in quantized.model.graph.node}
    layers = [n for n in quantized.model.graph.node if n.op_type in ("Conv", "Gemm")]
    assert len(layers) == 5
    for layer in layers:
        weight, bias = (nodes[name] for name in layer.input[1:3])
        values, scale = arrays[weight.input[0]], arrays[weight.input[1]]
        assert (weight.op_type, values.dtype, scale.shape) == ("DequantizeLinear", np.int8, values.shape[:1])
        assert 60 <= np.abs(values.astype(int)).max() <= 64
        assert (bias.op_type, arrays[bias.input[0]].dtype) == ("DequantizeLinear", np.int32)
    activations = [n for n in quantized.model.graph.node if n.op_type == "QuantizeLinear"]
    assert activations
    assert {arrays[n.input[2]].dtype for n in activations} == {np.dtype(np.uint8)}


def test_no_float_weight_is_left_beside_the_scales(quantized: FoldResult) -> None:
    scales = {n.input[1] for n in quantized.model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")}
    floats = {t.name for t in quantized.model.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert floats <= scales


def test_accuracy_stays(quantized: FoldResult, both: FoldResult) -> None:
    dense, folded = _accuracy(LENET), _accuracy(quick_fold(LENET, 0.2, samples=64).model)
    assert dense > 0.9
    assert abs(_accuracy(quantized.model) - dense) < 0.005
    assert abs(_accuracy(both.model) - folded) < 0.01


def test_integer_kernels_compute_what_the_file_says(quantized: FoldResult) -> None:
    """Fidelity is that of the kernels which users get: at 7 bits they agree with the file computed in floats."""
    images = bundled_test_images()[0][:200]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(quantized.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (floats,) = session.run(None, {"image": images})
    (integers,) = Session(quantized.model).run({"image": images})
    assert np.linalg.norm(integers - floats) < 0.02 * np.linalg.norm(floats)


def test_the_report_says_what_was_done(quantized: FoldResult, both: FoldResult) -> None:
    before = quantized.report.before
    for result, sparsity in ((quantized, 0.0), (both, 0.2)):
        report, record = result.report, result.report.quantization
        assert record is not None
        assert report.sparsity == pytest.approx(sparsity, abs=0.01)
        assert (record.dtype, record.float_weights) == ("int8", 0)
        assert report.after.size_bytes < 0.36 * record.folded_bytes
        assert report.fidelity is not None
        assert report.inputs is not None
        assert report.inputs.samples == 64
        assert report.config["dtype"] == "int8"
        for text in (str(report), render_html(report)):
            assert "uantised to int8" in text
        assert "--dtype int8" in render_html(report)
        assert '"dtype": "int8"' in report.to_json()
    assert quantized.report.after.parameters == before.parameters
    assert quantized.report.after.size_bytes == api.measure(quantized.model).size_bytes
    assert quick_fold(models.mlp(0), 0.3, method="fold-naive", allocation="uniform").report.quantization is None


def test_a_quantised_file_counts_as_many_weights_as_before() -> None:
    dense = models.residual(0, bn=False)
    made = quick_fold(dense, 0.0, dtype="int8").model
    expected, found = api.measure(dense), api.measure(made)
    assert (found.parameters, found.macs) == (expected.parameters, expected.macs)
    assert found.size_bytes < 0.75 * expected.size_bytes
    assert api.inspect_model(made).parameters == expected.parameters


def test_it_says_which_run_made_it_and_keeps_the_interface(both: FoldResult) -> None:
    original, made = onnx.load(LENET), both.model
    assert [(i.name, i.type) for i in made.graph.input] == [(i.name, i.type) for i in original.graph.input]
    assert [(o.name, o.type) for o in made.graph.output] == [(o.name, o.type) for o in original.graph.output]
    assert made.producer_name == original.producer_name
    (entry,) = (prop.value for prop in made.metadata_props)
    assert '"dtype": "int8"' in entry


def test_the_fold_is_the_same_with_and_without_it() -> None:
    """Also where the fold alone would not run the network."""
    options = {"method": "fold-ar", "allocation": "uniform"}
    plain, quantised = (quick_fold(models.chain_conv(0), 0.4, dtype=dtype, **options) for dtype in ("keep", "int8"))
    assert plain.report.inputs is None
    assert quantised.report.inputs is not None
    assert plain.report.groups == quantised.report.groups
    assert plain.report.after.parameters == quantised.report.after.parameters
    with_bias = {n.op_type for n in load(quantised.model).nodes}
    assert "BatchNormalization" not in with_bias  # merged into the convolutions


def test_ranges_come_from_the_given_samples() -> None:
    """Ten times larger inputs take a ten times larger scale."""
    model, x = models.chain_conv(0, bn=False), np.random.default_rng(0).random((8, 3, 8, 8), np.float32)
    scales = []
    for factor in (1.0, 10.0):
        made = quick_fold(model, 0.0, dtype="int8", samples=None, inputs="auto", calibration={"x": factor * x}).model
        node = next(n for n in made.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == "x")
        scales.append(float(_initializers(made)[node.input[1]]))
    assert scales[1] == pytest.approx(10 * scales[0])
    assert scales[0] == pytest.approx(x.max() / 255)


def test_a_search_measures_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantiser that spoils the model leaves no fold that keeps the fidelity."""
    model, options = models.residual(0), {"samples": 64, "min_fidelity": 0.7, "dtype": "int8"}
    result = quick_fold(model, **options)
    assert result.report.quantization is not None
    assert result.report.sparsity > 0.01

    def spoiled(view: GraphView, *rest: Any) -> Quantized:
        broken = view.copy()
        broken.set_weight("gemm_0_w", -view.weight("gemm_0_w"))
        return quantize_int8(broken, *rest)

    monkeypatch.setattr(fold_model, "quantize_int8", spoiled)
    with pytest.raises(BudgetError, match=r"a fidelity of 0\.7 cannot be kept"):
        quick_fold(model, **options)


def test_weights_beside_the_model(tmp_path: Path) -> None:
    result = quick_fold(LENET, 0.0, dtype="int8", save_as_external_data=True)
    path = result.save(tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx.data").stat().st_size > 40_000
    (inside,) = Session(result.model).run({"image": bundled_test_images()[0][:5]})
    (beside,) = Session(path).run({"image": bundled_test_images()[0][:5]})
    assert np.array_equal(inside, beside)


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    path, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(models.residual(0), path)
    words = ("--sparsity", "0.3", "--dtype", "int8", "--inputs", "dead-leaves", "--samples", "16")
    done = fresh_onnxfold("fold", path, out, *words)  # with hashes of its own
    assert done.returncode == 0, done.stderr
    assert "quantised to int8: " in done.stdout
    assert quick_fold(path, 0.3, dtype="int8").model.SerializeToString(deterministic=True) == out.read_bytes()


def test_the_quantiser_says_nothing_by_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """It logs on the root logger, which would set up a handler that prints."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            quick_fold(models.residual(0), 0.0, dtype="int8")
        assert not root.handlers
        assert not root.filters
    finally:
        root.handlers = handlers
    assert capfd.readouterr() == ("", "")
