"""Fold-AR's approximate repair: the formulas, and the traps that public implementations fell into."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper

import onnxfold
from onnxfold.channels import find_groups
from onnxfold.cluster.partition import mean_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.merge.normalize_batch_norm import NormalizeBatchNorm
from onnxfold.passes.repair.repair_approximate import RepairApproximate, variance_factor
from testing.cells import in_turn
from testing.models import ALL_MODELS, random_input, run
from testing.quick import LOSSLESS, quick_fold

Array = NDArray[np.float64]
EPSILON = 1e-5

SIX = [0, 1, 0, 2, 2, 2]
EIGHT = [0, 1, 1, 2, 3, 0, 1, 4]
TWELVE = [0, 1, 2, 3, 4, 4, 3, 2, 2, 0, 5, 6]


def _weights(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def _with(model: onnx.ModelProto, **values: object) -> onnx.ModelProto:
    """Return the model with some weights replaced."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for tensor in result.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(values[tensor.name], np.float32), tensor.name))
    return result


def _fold_ar(model: onnx.ModelProto, labels: dict[str, list[int]]) -> GraphView:
    """Fold-AR with given partitions, by group name; groups without one are kept whole."""
    view = load(model)
    analysis = find_groups(view)
    chosen = tuple(g for g in analysis.groups if g.name in labels)
    assert len(chosen) == len(labels)
    NormalizeBatchNorm(chosen)(view)
    original = view.copy()
    plan = FoldPlan(chosen, tuple(mean_partition(labels[g.name]) for g in chosen))
    FoldChannels(plan, tuple(analysis.counts))(view)
    assert RepairApproximate(original, plan)(view).modified
    return view


def _clusters(labels: list[int]) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(np.array(labels) == c) for c in range(max(labels) + 1)]


def _mean(values: NDArray[np.floating], labels: list[int]) -> Array:
    return np.stack([values[c].astype(np.float64).mean(axis=0) for c in _clusters(labels)])


def _factor(rows: NDArray[np.floating], labels: list[int]) -> Array:
    """The published formula, by an explicit loop over pairs."""
    flat = rows.reshape(len(rows), -1).astype(np.float64)
    factors = []
    for members in _clusters(labels):
        n = len(members)
        cosines = [
            flat[i] @ flat[j] / (np.linalg.norm(flat[i]) * np.linalg.norm(flat[j]))
            for i in members
            for j in members
            if i != j
        ]
        correlation = max(float(np.mean(cosines)), 0.0) if cosines else 0.0
        factors.append(n / np.sqrt(n + (n**2 - n) * correlation))
    return np.array(factors)


def _sigma(w: dict[str, NDArray[np.float32]], bn: str) -> Array:
    return np.sqrt(w[f"{bn}_var"].astype(np.float64) + EPSILON)


def _close(actual: NDArray[np.floating], expected: NDArray[np.floating]) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


# -- with BatchNormalization ---------------------------------------------------------------------


def test_correlation_from_producer_rows_only() -> None:
    """Not from the concatenation that is clustered: other consumer columns leave gamma as it is."""
    model = ALL_MODELS["chain_conv"](0)
    w = _weights(model)
    expected = _mean(w["bn_0_gamma"], SIX) * _factor(w["conv_0_w"], SIX)
    assert (np.abs(_factor(w["conv_0_w"], SIX) - 1) > 0.05).any()
    _close(_fold_ar(model, {"conv_0": SIX}).weight("bn_0_gamma"), expected)
    other = _with(model, conv_1_w=np.random.default_rng(1).standard_normal(w["conv_1_w"].shape))
    _close(_fold_ar(other, {"conv_0": SIX}).weight("bn_0_gamma"), expected)


def test_gamma_and_beta_are_applied_once() -> None:
    """Rows and bias hold neither gamma nor beta; the BatchNormalization holds the means, gamma corrected."""
    model = ALL_MODELS["mlp_bn"](0)
    w, sigma = _weights(model), _sigma(_weights(model), "bn_0")
    view = _fold_ar(model, {"gemm_0": TWELVE})
    _close(view.weight("gemm_0_w"), _mean(w["gemm_0_w"] / sigma[:, None], TWELVE))
    _close(view.weight("gemm_0_b"), _mean((w["gemm_0_b"] - w["bn_0_mean"]) / sigma, TWELVE))
    _close(view.weight("bn_0_gamma"), _mean(w["bn_0_gamma"], TWELVE) * _factor(w["gemm_0_w"], TWELVE))
    _close(view.weight("bn_0_beta"), _mean(w["bn_0_beta"], TWELVE))
    _close(view.weight("bn_0_mean"), np.zeros(7))
    _close(view.weight("bn_0_var"), np.full(7, 1 - EPSILON))


def test_a_layer_without_bias_keeps_none() -> None:
    """Its mean goes into the BatchNormalization instead."""
    model = ALL_MODELS["chain_conv"](0)
    w, sigma = _weights(model), _sigma(_weights(model), "bn_0")
    view = _fold_ar(model, {"conv_0": SIX})
    assert len(next(n for n in view.nodes if n.name == "conv_0").input) == 2
    _close(view.weight("bn_0_mean"), _mean(w["bn_0_mean"] / sigma, SIX))
    _close(view.weight("conv_0_w"), _mean(w["conv_0_w"] / sigma[:, None, None, None], SIX))


def test_correlation_from_rows_before_merging() -> None:
    """Both layers are folded: the second one's rows count with all their columns, and as they were."""
    model = ALL_MODELS["chain_conv"](0)
    w = _weights(model)
    view = _fold_ar(model, {"conv_0": SIX, "conv_1": EIGHT})
    _close(view.weight("bn_1_gamma"), _mean(w["bn_1_gamma"], EIGHT) * _factor(w["conv_1_w"], EIGHT))


def test_every_batch_norm_of_a_stream_has_its_own_correlation() -> None:
    """Two layers add into one stream; each BatchNormalization is repaired by the rows in front of it."""
    model = ALL_MODELS["residual"](0)
    w = _weights(model)
    view = _fold_ar(model, {"conv_0": EIGHT})
    factors = [_factor(w[f"conv_{i}_w"], EIGHT) for i in (0, 2)]
    assert np.abs(factors[0] - factors[1]).max() > 0.05
    for i, factor in zip((0, 2), factors, strict=True):
        _close(view.weight(f"bn_{i}_gamma"), _mean(w[f"bn_{i}_gamma"], EIGHT) * factor)


def test_batch_norm_on_a_stream_takes_the_rows_of_all_its_producers() -> None:
    """Pre-activation: concatenated rows of conv_0, conv_2 and conv_4; nothing is folded into the layers."""
    model = ALL_MODELS["preact_residual"](0)
    w = _weights(model)
    view = _fold_ar(model, {"conv_0": EIGHT})
    rows = np.concatenate([w[f"conv_{i}_w"].reshape(8, -1) for i in (0, 2, 4)], axis=1)
    for i in (0, 2, 4):
        _close(view.weight(f"bn_{i}_gamma"), _mean(w[f"bn_{i}_gamma"], EIGHT) * _factor(rows, EIGHT))
        _close(view.weight(f"bn_{i}_mean"), _mean(w[f"bn_{i}_mean"], EIGHT))
        _close(view.weight(f"conv_{i}_w"), _mean(w[f"conv_{i}_w"], EIGHT))


def test_batch_norm_behind_a_concat_is_repaired_branch_by_branch() -> None:
    model = ALL_MODELS["dense_net"](0)
    w = _weights(model)
    view = _fold_ar(model, {"conv_0": EIGHT, "conv_1": SIX})
    parts = [
        _mean(w["bn_1_gamma"][:8], EIGHT) * _factor(w["conv_0_w"], EIGHT),
        _mean(w["bn_1_gamma"][8:], SIX) * _factor(w["conv_1_w"], SIX),
    ]
    _close(view.weight("bn_1_gamma"), np.concatenate(parts))


def test_depthwise_filters_have_a_factor_each() -> None:
    """With a multiplier of two, the first and the second filters of a cluster are two sets of rows."""
    model = ALL_MODELS["depthwise_multiplier"](0)
    w = _weights(model)
    view = _fold_ar(model, {"conv_0": SIX})
    filters, gamma = w["conv_1_w"].reshape(6, 2, -1), w["bn_1_gamma"].reshape(6, 2)
    expected = [_mean(gamma[:, j], SIX) * _factor(filters[:, j], SIX) for j in (0, 1)]
    _close(view.weight("bn_1_gamma"), np.stack(expected, axis=1).reshape(-1))


# -- without BatchNormalization ------------------------------------------------------------------


@pytest.mark.parametrize("consumer_too", [False, True])
def test_fused_layer_keeps_the_mean_length_and_a_plain_bias(consumer_too: bool) -> None:
    """row_c = mean ||w|| * factor * mean(w / ||w||); with conv_0 folded too, its columns are summed afterwards."""
    model = ALL_MODELS["chain_conv_plain"](0)
    w = _weights(model)
    view = _fold_ar(model, {"conv_1": EIGHT, **({"conv_0": SIX} if consumer_too else {})})
    flat = w["conv_1_w"].reshape(8, -1).astype(np.float64)
    length = np.linalg.norm(flat, axis=1)
    row = _mean(length, EIGHT)[:, None] * _factor(flat, EIGHT)[:, None] * _mean(flat / length[:, None], EIGHT)
    expected = row.reshape(5, 6, 3, 3)
    if consumer_too:
        expected = np.stack([expected[:, c].sum(axis=1) for c in _clusters(SIX)], axis=1)
    _close(view.weight("conv_1_w"), expected)
    _close(view.weight("conv_1_b"), _mean(w["conv_1_b"], EIGHT))


def test_fused_orthogonal_rows_keep_their_length() -> None:
    model = ALL_MODELS["mlp"](0)
    rows = np.zeros((12, 7))
    rows[:6, :6] = np.diag([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    rows[6:] = np.random.default_rng(0).standard_normal((6, 7))
    labels = [0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7]
    view = _fold_ar(_with(model, gemm_0_w=rows), {"gemm_0": labels})
    _close(np.linalg.norm(view.weight("gemm_0_w")[:2], axis=1), np.array([2.0, 5.0]))
    _close(view.weight("gemm_0_w")[2:], rows[6:])


# -- the factor ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    n=st.integers(1, 9),
    d=st.integers(1, 12),
    shift=st.sampled_from([0.0, 1.0, -3.0]),
    zeros=st.booleans(),
)
def test_factor_lies_between_one_and_the_root_of_the_size(seed: int, n: int, d: int, shift: float, zeros: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 1, d)) + shift
    if zeros:
        rows[rng.integers(0, n)] = 0.0
    partition = mean_partition(rng.integers(0, 3, n))
    factor = variance_factor(rows, partition)[:, 0]
    size = partition.cluster_sizes
    assert (factor >= 1.0 - 1e-6).all()
    assert (factor <= np.sqrt(size) + 1e-6).all()
    if not zeros:
        _close(factor, _factor(rows, partition.labels.tolist()))


def test_factor_of_identical_rows_is_one() -> None:
    rows = np.tile(np.random.default_rng(0).standard_normal(5), (4, 1))[:, None]
    _close(variance_factor(rows, mean_partition([0, 0, 0, 0])), np.ones((1, 1)))
    scaled = rows * np.array([1.0, 2.0, 3.0, 4.0])[:, None, None]
    _close(variance_factor(scaled, mean_partition([0, 0, 0, 0])), np.ones((1, 1)))


def test_factor_of_orthogonal_and_of_opposed_rows_is_the_root_of_the_size() -> None:
    _close(variance_factor(np.eye(4)[:, None], mean_partition([0, 0, 0, 0])), np.full((1, 1), 2.0))
    opposed = np.array([[1.0, 0.0], [-1.0, 0.0]])[:, None]
    _close(variance_factor(opposed, mean_partition([0, 0])), np.full((1, 1), np.sqrt(2.0)))


def test_merge_matrices_are_normalised_once() -> None:
    """Rows are averaged: equal ones stay. Columns are summed: what they add up to stays."""
    model = ALL_MODELS["chain_conv_plain"](0)
    w = _weights(model)
    same = np.repeat(w["conv_0_w"][:1], 6, axis=0)
    view = _fold_ar(_with(model, conv_0_w=same, conv_0_b=np.ones(6)), {"conv_0": SIX})
    _close(view.weight("conv_0_w"), same[:3])
    _close(view.weight("conv_0_b"), np.ones(3))
    _close(view.weight("conv_1_w").sum(axis=1), w["conv_1_w"].sum(axis=1))


# -- degenerate weights --------------------------------------------------------------------------

DEAD = {
    "zero rows": {"conv_0_w": np.zeros((6, 3, 3, 3))},
    "one zero row": {"conv_1_w": lambda w: np.concatenate([np.zeros_like(w[:1]), w[1:]])},
    "tiny rows": {"conv_0_w": lambda w: w * 1e-30},
    "zero variance": {"bn_0_var": np.zeros(6)},
    "one zero variance": {"bn_0_var": [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]},
    "zero gamma": {"bn_0_gamma": np.zeros(6), "bn_0_beta": np.zeros(6)},
    "dead input": {"conv_1_w": np.zeros((8, 6, 3, 3))},
    "huge variance": {"bn_0_var": np.full(6, 1e30)},
}


@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize(("what", "base"), in_turn(DEAD, ["chain_conv", "chain_conv_plain", "residual"]))
def test_denominators_are_clamped(what: str, base: str, method: str) -> None:
    """Zero rows, dead channels and zero variances give finite weights and outputs."""
    model = ALL_MODELS[base](0)
    w = _weights(model)
    replaced = {}
    for name, value in DEAD[what].items():
        if name in w:
            changed = value(w[name]) if callable(value) else np.asarray(value)
            replaced[name] = np.resize(changed, w[name].shape)
    model = _with(model, **replaced)
    folded = quick_fold(model, channel_ratio=0.5, method=method, verify=False).model
    assert all(np.isfinite(v).all() for v in _weights(folded).values())
    assert all(np.isfinite(y).all() for y in run(folded, random_input(model, 0)))


@pytest.mark.parametrize(("name", "method"), in_turn(ALL_MODELS, LOSSLESS))  # the others: pytest.mark.long
def test_no_group_vanishes_at_high_ratios(name: str, method: str) -> None:
    model = ALL_MODELS[name](0)
    result = quick_fold(model, channel_ratio=0.97, method=method, verify=False)
    blocks = {g.name: g.block_count for g in onnxfold.inspect(model)}
    assert {g.name: g.folded_width for g in result.report.groups} == blocks
    assert all(min(t.dims, default=1) > 0 for t in result.model.graph.initializer)
    assert all(np.isfinite(y).all() for y in run(result.model, random_input(model, 0)))


def test_variance_under_unit_inputs_is_restored() -> None:
    """Where rows do not cancel out, a merged row is as long as its members on average."""
    model = ALL_MODELS["mlp"](0)
    w = _weights(model)
    rows = w["gemm_0_w"] + 1.0
    view = _fold_ar(_with(model, gemm_0_w=rows), {"gemm_0": TWELVE})
    _close(np.linalg.norm(view.weight("gemm_0_w"), axis=1), _mean(np.linalg.norm(rows, axis=1), TWELVE))
    onnx.checker.check_model(to_model(view), full_check=True)
