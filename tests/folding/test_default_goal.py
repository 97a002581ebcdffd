"""The default of a fold without a goal: as much goes as surely keeps the answers."""

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from onnxfold.errors import ConfigError
from testing.graph_builder import GraphBuilder
from testing.models import mlp, random_input, run
from testing.quick import quick_fold

CLASSES, WIDTH = 6, 64


def classifier(copies: int) -> ModelProto:
    """Return a classifier of images whose hidden channels are so many copies of some."""
    graph = GraphBuilder("classifier", 0, (3, 8, 8))
    rows = np.repeat(graph.normal(WIDTH // copies, 3, 3, 3), copies, axis=0)
    hidden = graph.node("Conv", ["x", graph.constant("rows", rows)], (WIDTH, 8, 8), pads=[1, 1, 1, 1])
    pooled = graph.node("GlobalAveragePool", [graph.relu(hidden)], (WIDTH, 1, 1))
    flat = graph.node("Flatten", [pooled], (WIDTH,))
    columns = graph.constant("columns", graph.normal(WIDTH, CLASSES))
    graph.outputs.append(graph.node("MatMul", [flat, columns], (CLASSES,)))
    return graph.build()


def test_half_goes_where_that_changes_no_answer() -> None:
    report = quick_fold(classifier(copies=4)).report
    assert report.sparsity == pytest.approx(0.5, abs=0.02)
    assert report.requested == "the most up to sparsity 0.5 that keeps 95% agreement"
    assert any("at sparsity 0.500: without a goal" in note for note in report.notes)
    assert report.config["sparsity"] is None


def test_less_goes_where_answers_would_change() -> None:
    model = classifier(copies=1)
    report = quick_fold(model, method="fold-ar").report
    assert 0.02 < report.sparsity < 0.45
    assert report.fidelity is not None
    half = quick_fold(model, 0.5, method="fold-ar").report.fidelity
    assert half is not None
    assert report.fidelity.outputs[0].relative_error < half.outputs[0].relative_error


def test_a_model_that_bears_nothing_keeps_all_and_says_why() -> None:
    model = mlp(0, widths=(8, 8))
    result = quick_fold(model, method="fold-naive")
    assert result.report.sparsity == 0
    x = random_input(model, 0)
    np.testing.assert_allclose(run(result.model, x)[0], run(model, x)[0], rtol=1e-4, atol=1e-5)
    note = next(note for note in result.report.notes if note.startswith("nothing that changes answers was removed"))
    assert "surely keeps 95% of the answers" in note


def test_answers_of_one_class_are_judged_by_their_scores() -> None:
    """Any fold keeps them: half of a network went whose scores were halved."""
    model = classifier(copies=1)
    columns = next(tensor for tensor in model.graph.initializer if tensor.name == "columns")
    values = numpy_helper.to_array(columns).copy()
    values[:, 0] = np.abs(values).max() * 4  # a sum of what a Relu gives: the first class always
    columns.CopyFrom(numpy_helper.from_array(values, "columns"))
    report = quick_fold(model, method="fold-ar").report
    assert report.fidelity is not None
    assert report.fidelity.outputs[0].most_frequent == 1.0
    assert report.fidelity.outputs[0].relative_error < 0.1
    assert any("all of one class" in note for note in report.notes) or report.sparsity == 0


def test_a_relative_error_is_stated_without_a_confidence() -> None:
    """An image is no answer that agrees or not, so no interval stands behind what is kept."""
    graph = GraphBuilder("filter", 0, (3, 8, 8))
    hidden = graph.node("Conv", ["x", graph.constant("rows", graph.normal(WIDTH, 3, 1, 1))], (WIDTH, 8, 8))
    columns = graph.constant("columns", graph.normal(3, WIDTH, 1, 1))
    graph.outputs.append(graph.node("Conv", [hidden, columns], (3, 8, 8)))  # linear: all but three channels may go
    report = quick_fold(graph.build(), method="fold-ls").report
    assert report.sparsity > 0.4
    note = next(note for note in report.notes if "without a goal" in note)
    assert "confidence" not in note


def test_given_samples_judge_with_what_they_can_show() -> None:
    rng = np.random.default_rng(1)
    few = {"x": rng.standard_normal((40, 3, 8, 8), dtype=np.float32)}
    report = quick_fold(classifier(copies=4), calibration=few).report
    assert any("judged on 10 inputs" in note for note in report.notes)
    assert report.sparsity > 0.5  # exact duplicates go all the same


def test_what_drops_blocks_asks_for_a_goal() -> None:
    with pytest.raises(ConfigError, match="give a sparsity or drop_blocks"):
        quick_fold(mlp(0), method="shortgpt")
