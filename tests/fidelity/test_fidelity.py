"""Agreement of two models: what is counted, how sure it is, and that NaN is never an answer."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from onnxfold.api import compare
from onnxfold.cli import cli
from onnxfold.errors import ConfigError, VerificationError
from onnxfold.fidelity import held_out
from onnxfold.fidelity import verify as verify_module
from onnxfold.fidelity.answer_measures import wilson_interval
from onnxfold.fidelity.held_out import HeldOut, held_out_inputs
from onnxfold.fidelity.measures import FidelityMeter, accuracy, fidelity
from onnxfold.graph.files import save as save_module
from onnxfold.graph.files.load import load
from onnxfold.html_report import render_html
from onnxfold.inputs.images.synthetic import sample_cost
from onnxfold.machine import memory
from testing import models
from testing.graph_builder import GraphBuilder
from testing.inputs import model_inputs
from testing.language_models import grouped_query_decoder
from testing.quick import quick_fold

NAN, INF = float("nan"), float("inf")


# -- counting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (252, 256, 0.9606, 0.9939)],
)
def test_wilson_interval(successes: int, trials: int, low: float, high: float) -> None:
    """Against the closed form, computed elsewhere."""
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    for p in (0.5, 0.9, 0.98):
        inside = [low <= p <= high for low, high in (wilson_interval(int(k), 256) for k in rng.binomial(256, p, 2000))]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.025)


def test_batches_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, 5))
    b = a + 0.3 * rng.standard_normal((40, 5))
    meter = FidelityMeter(["y"])
    for i in range(0, 40, 8):
        meter.add([a[i : i + 8]], [b[i : i + 8]])
    (part,), (whole,) = meter.report("x").outputs, fidelity(["y"], [a], [b], inputs="x").outputs
    assert meter.samples == 40
    assert part.relative_error == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a))
    assert part.relative_error == pytest.approx(whole.relative_error)
    assert (part.top1_agreement, part.top1_interval, part.top1_samples) == (
        whole.top1_agreement, whole.top1_interval, 40
    )  # fmt: skip


# -- NaN and infinity ----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "word"), [(NAN, "NaN"), (INF, "infinite")])
def test_what_is_no_longer_finite_is_an_error(value: float, word: str) -> None:
    a = np.ones((3, 2), np.float32)
    b = a.copy()
    b[1, 0] = value
    with pytest.raises(VerificationError, match=f"output 'y' is {word} in 1 places"):
        fidelity(["y"], [a], [b], inputs="x")


def test_nan_of_the_original_does_not_count() -> None:
    a = np.array([[1, 2], [NAN, 0], [3, 1], [2, 5]])
    b = np.array([[1, 2], [NAN, 9], [1, 3], [2, NAN]])
    a[3, 1] = NAN
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        meter = FidelityMeter(["y"])
        meter.add([a], [b])
    (found,) = meter.report("x").outputs
    assert (found.top1_agreement, found.top1_samples) == (0.5, 2)
    assert np.isfinite(found.relative_error)
    assert "NaN in 2 of 8 places" in meter.notes[0]


def test_nothing_but_nan_agrees_with_nothing() -> None:
    a = np.full((4, 3), NAN, np.float32)
    report = fidelity(["y"], [a], [a], inputs="x")
    (found,) = report.outputs
    assert found.top1_agreement is None
    assert found.top1_interval is None
    assert np.isnan(found.relative_error)
    assert report.to_dict()["outputs"][0]["relative_error"] is None
    assert accuracy([a], np.zeros(4, np.int64)) == 0.0


def test_masked_scores_are_answers() -> None:
    """-inf stands for classes that are out of the question."""
    a = np.array([[-INF, 1.0, 2.0], [-INF, 2.0, 1.0]], np.float32)
    (found,) = fidelity(["y"], [a], [a], inputs="x").outputs
    assert (found.top1_agreement, found.relative_error) == (1.0, 0.0)


# -- held-out inputs -----------------------------------------------------------------------------


def test_a_fold_says_how_many_of_what_it_was_measured_on() -> None:
    report = quick_fold(models.residual(0), 0.4).report
    assert report.fidelity is not None
    assert report.fidelity.samples == 256
    assert report.fidelity.inputs == "held-out dead leaves"
    (found,) = report.fidelity.outputs
    assert found.top1_samples == 256
    assert found.top1_agreement is not None
    assert found.top1_interval == wilson_interval(round(256 * found.top1_agreement), 256)
    low, high = found.top1_interval
    for text in (report.to_json(), render_html(report)):
        assert "held-out dead leaves" in text
        assert "256" in text
    assert f"{low:.1%} to {high:.1%}" in render_html(report)


def test_compare_measures_on_the_same_inputs_and_prints_the_interval(tmp_path: Path) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(models.residual(0), str(a))
    result = quick_fold(a, 0.4, seed=3)
    result.save(b)
    found = compare(a, b, seed=3)
    assert result.report.fidelity is not None
    assert found.outputs == result.report.fidelity.outputs
    assert found.samples == 256
    done = CliRunner().invoke(cli, ["compare", str(a), str(b)], catch_exceptions=False)
    assert "256 samples of generated dead leaves" in done.output
    assert "95 % confidence interval" in done.output


def test_held_out_inputs_are_none_that_a_fold_was_fitted_on() -> None:
    view = load(models.residual(0))
    fitted = np.concatenate([b["x"] for b in model_inputs(view, "dead-leaves", seed=0).batches])
    for seed in (0, 1):
        held = [feeds["x"] for _, feeds in held_out_inputs(view, seed=seed).batches]
        assert not (np.concatenate(held)[:, None, :, 0, 0] == fitted[None, :, :, 0, 0]).all(axis=2).any()
        assert len({part.tobytes() for part in held}) == len(held)
        again = [feeds["x"] for _, feeds in held_out_inputs(view, seed=seed).batches]
        assert all(np.array_equal(a, b) for a, b in zip(held, again, strict=True))


@pytest.mark.parametrize(
    ("name", "kind"), [("mlp", "Gaussian noise"), ("conv1d", "1/f noise"), ("residual", "dead leaves")]
)
def test_the_kind_is_named_truly(name: str, kind: str) -> None:
    assert held_out_inputs(load(models.ALL_MODELS[name](0)), seed=0).kind == kind


def _sizes(inputs: HeldOut) -> list[int]:
    return [samples for samples, _ in inputs.batches]


def test_large_networks_get_fewer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    view = load(models.residual(0))
    cost = sample_cost(view)
    assert cost > 0
    monkeypatch.setattr(held_out, "_COST", 2 * 100 * cost)
    assert _sizes(held_out_inputs(view, view, seed=0)) == [64, 64]  # whole batches
    monkeypatch.setattr(held_out, "_COST", 1.0)
    assert _sizes(held_out_inputs(view, view, seed=0)) == [64]
    notes = quick_fold(models.residual(0), 0.4).report.notes
    assert any("fidelity was measured on 64 samples instead of 256" in note for note in notes)


def test_batches_fit_into_the_memory_limit() -> None:
    with memory.memory_limit("64K"):
        inputs = held_out_inputs(load(models.residual(0)), seed=0)
        sizes = _sizes(inputs)
    assert max(sizes) < 8
    assert sum(sizes) >= 256


def test_a_fixed_batch_is_kept() -> None:
    model = models.residual(0)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    inputs = held_out_inputs(load(model), seed=0)
    assert _sizes(inputs) == [3] * 86
    assert compare(model, model).samples == 258


def test_states_keep_their_own_size() -> None:
    """A second input whose first dimension is no batch."""
    model = models.mlp(0)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    model.graph.input.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 1, 5]))
    y = model.graph.output[0].name
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(helper.make_node("Split", ["state"], ["first", "second"], axis=0))
    model.graph.node.append(helper.make_node("Squeeze", ["first", "axis"], ["flat"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "axis"))
    model.graph.node.append(helper.make_node("Add", ["before", "flat"], [y]))
    report = quick_fold(model, 0.3).report
    assert report.fidelity is not None
    assert report.fidelity.samples == 256
    assert report.fidelity.inputs == "held-out Gaussian noise and 1/f noise"


def test_models_that_do_not_fit_side_by_side_are_measured_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(models.residual(0), str(path))
    together = quick_fold(path, 0.4).report.fidelity
    monkeypatch.setattr(save_module, "PROTOBUF_LIMIT", 1000)
    monkeypatch.setattr(verify_module, "PROTOBUF_LIMIT", 1000)
    assert quick_fold(path, 0.4).report.fidelity == together
    monkeypatch.setattr(held_out, "_KEPT_BYTES", 1)
    found = quick_fold(path, 0.4).report.fidelity
    assert found is not None
    assert found.samples == 64


def test_a_model_that_does_not_run_is_said_to_be_unmeasured() -> None:
    """It declares a free batch, and runs on three samples alone."""
    model = models.residual(0)
    y = model.graph.output[0].name
    model.graph.node[-1].output[0] = "before"
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, -1], np.int64), "shape"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((5, 5), np.float32), "last"))
    model.graph.node.append(helper.make_node("Reshape", ["before", "shape"], ["flat"]))
    model.graph.node.append(helper.make_node("MatMul", ["flat", "last"], [y]))
    report = quick_fold(model, 0.4).report
    assert report.fidelity is None
    assert any("fidelity was not measured: the original does not run" in note for note in report.notes)
    assert "fidelity was not measured" in render_html(report)


def test_compare_refuses_models_with_other_outputs() -> None:
    with pytest.raises(ConfigError, match="outputs"):
        compare(models.residual(0), models.two_outputs(0), {})


def test_the_search_for_a_fidelity_tells_its_interval() -> None:
    report = quick_fold(models.mlp(0, widths=(32, 24)), min_fidelity=0.8, samples=64).report
    (note,) = [n for n in report.notes if "held-out inputs at sparsity" in n]
    assert "95 % confidence interval" in note
    assert report.fidelity is not None
    assert report.fidelity.samples == 256
    assert report.diagnostics.variance_ratios


def test_a_search_on_dead_leaves_decides_by_new_ones() -> None:
    """All of the requested ones are for the fit, and the result is verified on others."""
    report = quick_fold(models.residual(0), min_fidelity=0.5, samples=40).report
    (note,) = [n for n in report.notes if "held-out inputs at sparsity" in n]
    assert "on 256 held-out inputs" in note
    assert report.inputs is not None
    assert report.inputs.samples == 40


def test_a_search_on_data_holds_a_quarter_out() -> None:
    model, x = models.residual(0), np.random.default_rng(0).normal(size=(40, 3, 8, 8)).astype(np.float32)
    report = quick_fold(model, min_fidelity=0.5, calibration={model.graph.input[0].name: x}).report
    (note,) = [n for n in report.notes if "held-out inputs at sparsity" in n]
    assert "on 10 held-out inputs" in note
    assert report.inputs is not None
    assert report.inputs.samples == 30
    assert report.inputs.reason == "the given samples; 30 of 40 fitted on"


def test_a_search_on_tokens_names_those_that_folds_are_fitted_on() -> None:
    report = quick_fold(grouped_query_decoder(), min_fidelity=0.1, samples=8, verify=False).report
    (note,) = [n for n in report.notes if "held-out inputs at sparsity" in n]
    assert "on 2 held-out inputs" in note
    assert report.inputs is not None
    assert report.inputs.samples == 6
    assert report.inputs.reason.endswith("; 6 of 8 fitted on")


def test_strict_shape_inference_alone_refuses_no_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wrong about some Reshapes that onnxruntime runs; a file that is no valid model is refused."""
    model, check = models.mlp(0), onnx.checker.check_model

    def strict(checked: onnx.ModelProto, *, full_check: bool) -> None:
        check(checked, full_check=full_check)
        if full_check and checked is not model:
            raise ValueError("Dimension could not be inferred")

    monkeypatch.setattr(onnx.checker, "check_model", strict)
    notes = quick_fold(model, 0.3).report.notes
    assert any("onnxruntime alone decides: Dimension could not" in note for note in notes)
    monkeypatch.setattr(onnx.checker, "check_model", lambda checked, full_check: strict(checked, full_check=True))
    with pytest.raises(VerificationError, match="rejects the folded model"):
        quick_fold(model, 0.3)


@pytest.mark.parametrize(("side", "samples"), [(8, 256), (1024, 32)])
def test_large_images_are_few_where_no_cost_is_known(side: int, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 images of 1,024 x 1,280 took two minutes in a network whose multiply-accumulates cannot be counted."""
    g = GraphBuilder("net", 0, (3, side, side))
    g.output(g.relu("x"))
    monkeypatch.setattr(held_out.synthetic, "sample_cost", lambda view: 0.0)
    monkeypatch.setattr(held_out.synthetic, "synthetic_inputs", lambda *_, **__: [{}])
    total = sum(count for count, _ in held_out_inputs(load(g.build()), seed=0).batches)
    assert total == pytest.approx(samples, rel=0.3)
