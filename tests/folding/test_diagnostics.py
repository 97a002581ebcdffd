"""Diagnostics against their definitions, computed again from whole-model runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import onnx
import pytest

from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.partition import ChannelPartition, mean_partition, select_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.folding.open_model import open_scopes
from onnxfold.folding.probes.diagnose import diagnose, error_curves
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.report.records import CORRELATION_BINS, Diagnostics, VarianceRatio, join_diagnostics
from testing.graph_builder import GraphBuilder
from testing.models import ALL_MODELS, depthwise_separable, mlp, random_input, residual, run
from testing.quick import quick_fold

Partition = Callable[[FoldGroup], ChannelPartition]


def _pairs(group: FoldGroup) -> ChannelPartition:
    """Channels that follow each other become one, inside blocks."""
    blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
    return mean_partition(blocks * group.size + np.arange(group.size) // 2)


def _halves(group: FoldGroup) -> ChannelPartition:
    return select_partition(np.arange(group.size)[::2], group.size)


def _folded(model: onnx.ModelProto, partition: Partition) -> tuple[GraphView, GraphView, FoldPlan, list[FoldGroup]]:
    scope = open_scopes(load(model))[0]
    analysis = scope.analysis
    plan = FoldPlan(tuple(analysis.groups), tuple(partition(g) for g in analysis.groups))
    folded = scope.view.copy()
    FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects))(folded)
    return scope.view, folded, plan, analysis.groups


def _diagnosed(model: onnx.ModelProto, partition: Partition, feeds: dict[str, np.ndarray] | None = None) -> Diagnostics:
    original, folded, plan, groups = _folded(model, partition)
    return diagnose(original, folded, plan, groups, [feeds or random_input(model, 1)])


def _all_tensors(view: GraphView, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every activation, from one run of the whole model."""
    model = onnx.ModelProto()
    model.CopyFrom(to_model(view))
    names = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    return dict(zip(names, run(model, feeds), strict=True))


def _channels(values: np.ndarray) -> np.ndarray:
    return np.moveaxis(values, 1, 0).reshape(values.shape[1], -1).astype(np.float64)


@pytest.mark.parametrize("partition", [_pairs, _halves])
@pytest.mark.parametrize(
    "model",
    [mlp(3), mlp(3, bn=True), residual(3), residual(3, bn=False), depthwise_separable(3, multiplier=2)],
    ids=["mlp", "mlp-bn", "residual", "residual-no-bn", "multiplier"],
)
def test_variance_ratios_are_those_of_their_definition(model: onnx.ModelProto, partition: Partition) -> None:
    original, folded, plan, groups = _folded(model, partition)
    feeds = random_input(model, 1)
    before, after = _all_tensors(original, feeds), _all_tensors(folded, feeds)
    found = diagnose(original, folded, plan, groups, [feeds]).variance_ratios
    linear = [node for node in original.nodes if node.op_type in ("Conv", "Gemm")]
    assert [r.layer for r in found] == [node.name for node in linear]
    for node, ratio in zip(linear, found, strict=True):
        name = node.output[0]
        readers = original.consumers(name)
        if len(readers) == 1 and readers[0].op_type == "BatchNormalization":
            name = readers[0].output[0]
        old, new = _channels(before[name]).var(axis=1), _channels(after[name]).var(axis=1)
        # Which of the folded channels each original one became: walk over the kept positions in order.
        owners = [
            (g, p, pos) for g, p in plan for axis, pos in g.tensors.items() if (axis.tensor, axis.axis) == (name, 1)
        ]
        became = {i: i for i in range(len(old))}
        for group, p, positions in owners:
            kept = sorted(positions[p.representatives].reshape(-1).tolist())
            for unit in range(group.size):
                for place in range(positions.shape[1]):
                    label = p.labels[unit]
                    home = kept.index(positions[p.representatives[label], place]) if label >= 0 else -1
                    became[positions[unit, place]] = home
        expected = [new[became[i]] / old[i] for i in range(len(old)) if became[i] >= 0 and old[i] > 1e-6 * old.max()]
        assert ratio.mean == pytest.approx(np.mean(expected), rel=1e-3)
        assert (ratio.lower, ratio.upper) == pytest.approx(np.quantile(expected, [0.25, 0.75]), rel=1e-3)
        assert (ratio.channels, ratio.left_out) == (len(expected), len(old) - len(expected))


def _two_features(scale: float = 1.0, dtype: type = np.float32) -> onnx.ModelProto:
    """y = sum of relu(x_i + 10), x of four features: the hidden channels are the features themselves."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensors = {"w": scale * np.eye(4), "b": np.full(4, 10.0), "v": np.ones((4, 1))}
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="hidden"),
            onnx.helper.make_node("Relu", ["h"], ["r"]),
            onnx.helper.make_node("Gemm", ["r", "v"], ["y"], name="last"),
        ],
        "features",
        [onnx.helper.make_tensor_value_info("x", kind, ["n", 4])],
        [onnx.helper.make_tensor_value_info("y", kind, ["n", 1])],
        [onnx.numpy_helper.from_array(values.astype(dtype), name) for name, values in tensors.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def _independent(count: int = 64) -> np.ndarray:
    """Four features of variance one, exactly uncorrelated."""
    values = np.linalg.qr(np.random.default_rng(0).normal(size=(count, 5)) - [[0.0]])[0]
    centred = np.linalg.qr(values - values.mean(axis=0))[0][:, :4]
    centred = centred - centred.mean(axis=0)
    return (centred / centred.std(axis=0)).astype(np.float32)


def test_averaging_independent_channels_halves_their_variance() -> None:
    found = _diagnosed(_two_features(), _pairs, {"x": _independent()})
    hidden, last = found.variance_ratios
    assert hidden.mean == pytest.approx(0.5, abs=0.02)
    assert last.mean == pytest.approx(1.0, abs=0.02)
    assert found.samples == 64


def test_channels_without_a_ratio_are_counted() -> None:
    model = _two_features()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[:, 0] = 0.0
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    feeds = {"x": _independent()}
    constant = _diagnosed(model, lambda g: mean_partition([0, 1, 2, 2]), feeds).variance_ratios[0]
    assert (constant.channels, constant.left_out) == (3, 1)
    assert constant.mean == pytest.approx((1.0 + 0.5 + 0.5) / 3, abs=0.02)
    dropped = _diagnosed(model, lambda g: select_partition([1], 4), feeds).variance_ratios[0]
    assert (dropped.channels, dropped.left_out) == (1, 3)


def test_a_layer_that_is_constant_has_no_ratio() -> None:
    model = _two_features(scale=0.0)
    hidden = _diagnosed(model, _pairs, {"x": _independent()}).variance_ratios[0]
    assert np.isnan(hidden.mean)
    assert (hidden.channels, hidden.left_out) == (0, 4)


def test_half_precision_does_not_overflow() -> None:
    model = _two_features(1000.0, np.float16)
    hidden = _diagnosed(model, _pairs, {"x": _independent().astype(np.float16)}).variance_ratios[0]
    assert hidden.mean == pytest.approx(0.5, abs=0.02)


def test_correlations_are_counted_in_bins() -> None:
    x = _independent()
    x[:, 1] = x[:, 0]
    x[:, 2] = 0.6 * x[:, 0] + 0.8 * x[:, 2]
    found = _diagnosed(_two_features(0.1), lambda g: mean_partition([0, 0, 1, 2]), {"x": x}).correlations
    assert [h.group for h in found] == ["hidden"]
    for counts, kept in ((found[0].before, x), (found[0].after, x[:, 1:])):
        pairs = np.corrcoef(kept.T)[np.triu_indices(kept.shape[1], 1)]
        # Correlations of about 0 and 0.6 lie on the border of two bins.
        shares = np.array(counts)
        assert shares.sum() == len(pairs)
        assert shares[-1] == (pairs > 0.9).sum()
        assert shares[15:17].sum() == (abs(pairs - 0.6) < 0.05).sum()
        assert shares[9:11].sum() == (abs(pairs) < 0.05).sum()
        assert len(counts) == CORRELATION_BINS


def test_channels_that_are_constant_have_no_correlations() -> None:
    x = _independent()
    x[:, 3] = 1e-5 * x[:, 0]
    (found,) = _diagnosed(_two_features(), _halves, {"x": x}).correlations
    assert (sum(found.before), sum(found.after)) == (3, 1)


@pytest.mark.parametrize("name", sorted(ALL_MODELS))
def test_every_model_is_measured(name: str) -> None:
    model = ALL_MODELS[name](2)
    found = _diagnosed(model, _pairs)
    assert not found.not_run
    assert len(found.correlations) == len(_folded(model, _pairs)[3])
    assert all(r.channels + r.left_out > 0 for r in found.variance_ratios)
    assert json.loads(json.dumps(asdict(found)))["variance_ratios"][-1]["channels"] > 0


def test_an_unchanged_network_has_ratios_of_one_and_equal_histograms() -> None:
    found = _diagnosed(residual(4), lambda g: mean_partition(np.arange(g.size)))
    for ratio in found.variance_ratios:
        assert (ratio.mean, ratio.lower, ratio.upper) == (1.0, 1.0, 1.0)
    assert all(h.before == h.after and sum(h.before) > 0 for h in found.correlations)


def test_a_few_batches_are_enough() -> None:
    model = mlp(1)
    original, folded, plan, groups = _folded(model, _pairs)
    batches = [{"x": np.random.default_rng(i).normal(size=(32, 7)).astype(np.float32)} for i in range(5)]
    assert diagnose(original, folded, plan, groups, batches).samples == 64


def test_a_network_without_inputs_is_measured() -> None:
    """It draws its own numbers."""
    model = mlp(0)
    shape = [8, *(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    draw = onnx.helper.make_node("RandomNormal", [], [model.graph.input[0].name], shape=shape, seed=1.0)
    del model.graph.input[:]
    model.graph.node.insert(0, draw)
    report = quick_fold(model, channel_ratio=0.5).report
    assert report.inputs is not None
    assert sum(r.channels for r in report.diagnostics.variance_ratios) > 0


def test_what_cannot_be_run_is_said() -> None:
    g = GraphBuilder("foreign", 0, (6,))
    g.domains["com.example"] = 1
    h = g.relu(g.gemm("x", 8))
    g.output(g.node("Mystery", [g.gemm(h, 5)], [5], domain="com.example"))
    model = g.build()
    original, folded, plan, groups = _folded(model, _pairs)
    found = diagnose(original, folded, plan, groups, [random_input(model, 0)])
    assert "mystery_0" in found.not_run
    assert (found.variance_ratios, found.correlations) == ((), ())
    assert diagnose(original, folded, plan, groups, None).not_run == "this fold ran no network"


def test_error_curves_are_thinned_and_keep_the_chosen_width() -> None:
    errors = np.linspace(3.0, 0.0, 513)
    errors[:4] = np.inf
    group = _folded(mlp(0), _pairs)[-1][0]
    (curve,) = error_curves([group], [errors], [301])
    assert curve.group == group.name
    assert 10 <= len(curve.widths) <= 17
    assert (curve.widths[0], curve.widths[-1]) == (4, 512)
    assert list(curve.widths) == sorted(set(curve.widths))
    assert curve.errors == tuple(errors[list(curve.widths)])
    assert curve.error == curve.errors[curve.widths.index(301)] == errors[301]


def test_graphs_of_one_model_are_joined() -> None:
    ratio = VarianceRatio("conv", 1.0, 1.0, 1.0, 8, 0)
    parts = [Diagnostics(variance_ratios=(ratio,), samples=64), Diagnostics(not_run="no"), Diagnostics()]
    assert join_diagnostics(parts) == Diagnostics(variance_ratios=(ratio,), samples=64, not_run="no")
    assert join_diagnostics([]) == Diagnostics()
