"""Channels whose mean and variance are taken together: groups stay equally wide, and duplicates count equally."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfold
from onnxfold.cluster.duplicates import find_duplicates, is_lossless
from onnxfold.graph.files.load import load
from onnxfold.inspection import inspect_model
from testing.compare import relative_difference
from testing.graph_builder import GraphBuilder
from testing.models import random_input, run
from testing.quick import quick_fold
from testing.rule_models.table import RULE_MODELS

FORMS = ("GroupNormalization", "GroupNormalization-reshaped")


def _group_norm(g: GraphBuilder, x: str, groups: int, between: str = "") -> str:
    """As exporters write it before operator set 18."""
    c, h, w = g.shapes[x]
    rows = g.node("Reshape", [x, g.constant("groups", np.array([0, groups, -1]))], [groups, c // groups * h * w])
    if between:
        rows = g.unary(between, rows)
    ones, zeros = g.constant("ones", np.ones(groups, np.float32)), g.constant("zeros", np.zeros(groups, np.float32))
    normed = g.node("InstanceNormalization", [rows, ones, zeros], g.shapes[rows])
    return g.node("Reshape", [normed, g.constant("image", np.array([0, c, h, w]))], [c, h, w])


def _network(between: str = "", two: bool = False, groups: int = 2, width: int = 8) -> onnx.ModelProto:
    g = GraphBuilder("group_norm", 0, (3, 6, 6))
    x = g.conv("x", width)
    if two:
        x = g.node("Concat", [x, g.relu(g.conv("x", width))], [2 * width, 6, 6], axis=1)
    h = g.relu(_group_norm(g, x, groups, between))
    g.output(g.gemm(g.flatten(g.node("GlobalAveragePool", [h], [g.channels(h), 1, 1])), 4))
    return g.build()


def _with_copies(model: onnx.ModelProto, copies: dict[int, int]) -> onnx.ModelProto:
    """Let filters of the first convolution be copies of others."""
    for tensor in model.graph.initializer:
        if tensor.name.startswith("conv_0"):
            values = numpy_helper.to_array(tensor).copy()
            for copy, source in copies.items():
                values[copy] = values[source]
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model


@pytest.mark.parametrize("form", FORMS)
def test_channels_of_a_group_stay_together(form: str) -> None:
    (group,) = (g for g in inspect_model(RULE_MODELS[form]()).groups if "conv_0" in g.nodes)
    assert group.rules.averaged
    assert group.blocks is not None
    assert group.blocks.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_lose_equally_many_and_are_repaired(groups: int) -> None:
    model = _network(groups=groups, width=16)
    feeds = random_input(model, 1)
    expected = run(model, feeds)
    errors = {}
    for method in ("fold-ls", "prune-l2"):
        result = quick_fold(model, channel_ratio=0.5, method=method, verify=False)
        assert result.report.groups[0].folded_width == 8
        errors[method] = relative_difference(expected, run(result.model, feeds))
    assert errors["fold-ls"] < errors["prune-l2"]


def test_channels_averaged_with_others_stay() -> None:
    """One merge would change how much the other's channels count."""
    found = inspect_model(_network(two=True, groups=1))
    assert not found.groups
    assert any("together with others that are no part of this group" in r.reason for r in found.refusals)


def test_groups_that_another_node_reads_as_rows_stay() -> None:
    found = inspect_model(_network(between="Relu"))
    assert not found.groups
    assert any("is read by nodes that cut this axis into different groups" in r.reason for r in found.refusals)


@pytest.mark.parametrize(
    ("copies", "left"),
    [
        ({1: 0, 3: 2, 5: 4, 7: 6}, 4),  # pairs
        ({1: 0, 2: 0, 3: 0, 5: 4, 7: 6}, 4),  # four of one kind are two pairs
        ({1: 0}, 8),  # all others would count less than before
        ({1: 0, 2: 0, 5: 4, 6: 4}, 8),
    ],
    ids=str,
)
def test_duplicates_are_those_whose_merge_keeps_mean_and_variance(copies: dict[int, int], left: int) -> None:
    model = _with_copies(_network(), copies)
    view = load(model)
    groups = onnxfold.inspect(model)
    (classes,) = find_duplicates(view, groups)
    assert len(np.unique(classes)) == left
    widths = [width for width in range(1, 9) if is_lossless(groups[0], width, classes)]
    assert widths == sorted({left, 8})
    feeds = random_input(model, 2)
    for method in ("fold-ls", "fold-ar"):
        for width in widths[:-1]:
            result = quick_fold(model, channel_ratio=1 - width / 8, method=method, verify=False)
            assert result.report.groups[0].folded_width == width
            assert relative_difference(run(model, feeds), run(result.model, feeds)) < 1e-5
        result = quick_fold(model, channel_ratio=0.25, method=method, verify=False)  # some pairs only: repaired
        assert result.report.groups[0].folded_width == 6


def _layer_norm(g: GraphBuilder, x: str, parts: bool) -> str:
    """As one operator, or as exporters write it before operator set 17."""
    width = g.shapes[x][0]
    scale = g.constant(f"{x}_scale", np.linspace(0.5, 1.5, width, dtype=np.float32))
    shift = g.constant(f"{x}_shift", np.linspace(-0.2, 0.2, width, dtype=np.float32))
    if not parts:
        return g.node("LayerNormalization", [x, scale, shift], [width])
    off = g.node("Sub", [x, g.node("ReduceMean", [x], [1], axes=[-1])], [width])
    squares = g.node("Pow", [off, g.constant(f"{x}_two", np.float32(2.0))], [width])
    variance = g.node("ReduceMean", [squares], [1], axes=[-1])
    deviation = g.node("Sqrt", [g.node("Add", [variance, g.constant(f"{x}_e", np.float32(1e-5))], [1])], [1])
    normed = g.node("Mul", [g.node("Div", [off, deviation], [width]), scale], [width])
    return g.node("Add", [normed, shift], [width])


@pytest.mark.parametrize("parts", [False, True])
def test_channels_of_one_layer_fold_in_front_of_a_layer_normalisation(parts: bool) -> None:
    """Networks of Linear, LayerNorm and GELU had nothing to fold."""
    g = GraphBuilder("layer_norm", 0, (12,))
    g.output(g.gemm(g.relu(_layer_norm(g, g.gemm("x", 16), parts)), 4))
    model = g.build()
    feeds = random_input(model, 1)
    expected = run(model, feeds)
    errors = {}
    for method in ("fold-ls", "prune-l2"):
        result = quick_fold(model, channel_ratio=0.5, method=method, verify=False)
        assert [group.folded_width for group in result.report.groups] == [8]
        errors[method] = relative_difference(expected, run(result.model, feeds))
    assert errors["fold-ls"] < errors["prune-l2"]


@pytest.mark.parametrize("parts", [False, True])
def test_channels_of_a_residual_stream_stay_in_front_of_a_layer_normalisation(parts: bool) -> None:
    g = GraphBuilder("stream", 0, (12,))
    stream = g.gemm("x", 16)
    branch = g.gemm(g.relu(g.gemm(_layer_norm(g, stream, parts), 24)), 16)
    g.output(g.gemm(_layer_norm(g, g.node("Add", [stream, branch], [16]), parts), 4))
    assert [group.size for group in inspect_model(g.build()).groups] == [24]
