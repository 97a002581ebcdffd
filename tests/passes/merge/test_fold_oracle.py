"""A fold equals a graph that was merged, or sliced, by hand: the expected weights are written out layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxfold.channels import find_groups
from onnxfold.cluster.partition import ChannelPartition, mean_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.passes.merge.fold_channels import FoldChannels
from testing.models import ALL_MODELS, random_input, run

Array = NDArray[np.float32]
EPSILON = 1e-5


@dataclass(frozen=True)
class Merge:
    """Clusters of channels: rows become their mean, columns their sum."""

    clusters: tuple[tuple[int, ...], ...]

    def rows(self, w: Array, axis: int) -> Array:
        return np.stack([np.take(w, c, axis).mean(axis=axis) for c in self.clusters], axis=axis)

    def columns(self, w: Array, axis: int) -> Array:
        return np.stack([np.take(w, c, axis).sum(axis=axis) for c in self.clusters], axis=axis)

    def partition(self) -> ChannelPartition:
        labels = np.empty(sum(map(len, self.clusters)), np.int64)
        for number, members in enumerate(self.clusters):
            labels[list(members)] = number
        return mean_partition(labels)


@dataclass(frozen=True)
class Select:
    """Channels that stay; all others go without a replacement."""

    kept: tuple[int, ...]
    size: int

    def rows(self, w: Array, axis: int) -> Array:
        return np.take(w, self.kept, axis)

    columns = rows

    def partition(self) -> ChannelPartition:
        matrix = np.eye(self.size)[list(self.kept)]
        nearest = np.searchsorted(np.array(self.kept), np.arange(self.size), side="right") - 1
        return ChannelPartition(np.maximum(nearest, 0), np.array(self.kept), (matrix, matrix.T.copy()))


Fold = Merge | Select
#: What every group becomes, by the group's name.
Folds = dict[str, Fold]
Weights = dict[str, Array]


def _layer(w: Weights, name: str, fold: Fold, bn: str = "") -> None:
    """Fold the outputs of a Conv or Gemm (one row each), its bias, and the BatchNormalization behind it."""
    w[f"{name}_w"] = fold.rows(w[f"{name}_w"], 0)
    if f"{name}_b" in w:
        w[f"{name}_b"] = fold.rows(w[f"{name}_b"], 0)
    if bn:
        _norm(w, bn, fold)


def _norm(w: Weights, bn: str, fold: Fold) -> None:
    for part in ("gamma", "beta", "mean"):
        w[f"{bn}_{part}"] = fold.rows(w[f"{bn}_{part}"], 0)
    factor = fold.rows(1 / np.sqrt(w[f"{bn}_var"].astype(np.float64) + EPSILON), 0)
    w[f"{bn}_var"] = (1 / factor**2 - EPSILON).astype(np.float32)


def _reads(w: Weights, name: str, fold: Fold) -> None:
    """Fold the inputs of a Conv or Gemm, which lie on axis 1."""
    w[f"{name}_w"] = fold.columns(w[f"{name}_w"], 1)


def _chain_conv(w: Weights, f: Folds) -> None:
    _layer(w, "conv_0", f["conv_0"], "bn_0")
    _reads(w, "conv_1", f["conv_0"])
    _layer(w, "conv_1", f["conv_1"], "bn_1")
    _reads(w, "gemm_0", f["conv_1"])


def _residual(w: Weights, f: Folds) -> None:
    """Two streams: conv_0 and conv_2 add into the first, conv_4 and conv_5 (projection) into the second."""
    for conv in (0, 2):
        _layer(w, f"conv_{conv}", f["conv_0"], f"bn_{conv}")
    for conv in (1, 3, 5):
        _reads(w, f"conv_{conv}", f["conv_0"])
    _layer(w, "conv_1", f["conv_1"], "bn_1")
    _reads(w, "conv_2", f["conv_1"])
    _layer(w, "conv_3", f["conv_3"], "bn_3")
    _reads(w, "conv_4", f["conv_3"])
    for conv in (4, 5):
        _layer(w, f"conv_{conv}", f["conv_4"], f"bn_{conv}")
    _reads(w, "gemm_0", f["conv_4"])


def _flatten_conv(w: Weights, f: Folds) -> None:
    _layer(w, "conv_0", f["conv_0"], "bn_0")
    _reads(w, "conv_1", f["conv_0"])
    _layer(w, "conv_1", f["conv_1"])
    columns = w["gemm_0_w"].reshape(10, 8, 2 * 2)  # column c*H*W + i belongs to channel c
    w["gemm_0_w"] = f["conv_1"].columns(columns, 1).reshape(10, -1)
    _layer(w, "gemm_0", f["gemm_0"])
    _reads(w, "gemm_1", f["gemm_0"])


def _concat_net(w: Weights, f: Folds) -> None:
    _layer(w, "conv_0", f["conv_0"], "bn_0")
    _reads(w, "conv_1", f["conv_0"])
    _reads(w, "conv_2", f["conv_0"])
    _layer(w, "conv_1", f["conv_1"])
    _layer(w, "conv_2", f["conv_2"], "bn_1")
    left, right = w["conv_3_w"][:, :6], w["conv_3_w"][:, 6:]
    w["conv_3_w"] = np.concatenate([f["conv_1"].columns(left, 1), f["conv_2"].columns(right, 1)], axis=1)
    _layer(w, "conv_3", f["conv_3"])
    _reads(w, "gemm_0", f["conv_3"])


def _depthwise(w: Weights, f: Folds, multiplier: int) -> None:
    """Filters m*c .. m*c+m-1 belong to channel c: they are rows only."""
    fold = f["conv_0"]
    _layer(w, "conv_0", fold, "bn_0")
    for name in ("conv_1_w", *(f"bn_1_{part}" for part in ("gamma", "beta", "mean"))):
        per_channel = w[name].reshape(6, multiplier, *w[name].shape[1:])
        w[name] = fold.rows(per_channel, 0).reshape(-1, *w[name].shape[1:])
    factor = 1 / np.sqrt(w["bn_1_var"].astype(np.float64).reshape(6, multiplier) + EPSILON)
    w["bn_1_var"] = (1 / fold.rows(factor, 0) ** 2 - EPSILON).reshape(-1).astype(np.float32)
    columns = w["conv_2_w"].reshape(12, 6, multiplier, 1, 1)
    w["conv_2_w"] = fold.columns(columns, 1).reshape(12, -1, 1, 1)
    _layer(w, "conv_2", f["conv_2"], "bn_2")
    _reads(w, "gemm_0", f["conv_2"])


def _grouped_conv(w: Weights, f: Folds) -> None:
    """Filters 6j .. 6j+5 of conv_1 read channels 6j .. 6j+5 of conv_0; the folds below respect that."""
    _layer(w, "conv_0", f["conv_0"])
    blocks = []
    for j in range(2):
        inside = {"clusters": tuple(tuple(i - 6 * j for i in c) for c in _clusters(f["conv_0"]) if c[0] // 6 == j)}
        part = Merge(**inside) if isinstance(f["conv_0"], Merge) else Select(tuple(c[0] for c in inside["clusters"]), 6)
        blocks.append(part.columns(w["conv_1_w"][6 * j : 6 * j + 6], 1))
    w["conv_1_w"] = np.concatenate(blocks)
    _layer(w, "conv_1", f["conv_1"], "bn_0")
    _reads(w, "conv_2", f["conv_1"])
    _layer(w, "conv_2", f["conv_2"])
    _reads(w, "gemm_0", f["conv_2"])


def _clusters(fold: Fold) -> tuple[tuple[int, ...], ...]:
    return fold.clusters if isinstance(fold, Merge) else tuple((i,) for i in fold.kept)


def _conv_transpose(w: Weights, f: Folds) -> None:
    """The weight is (inputs, outputs, k, k)."""
    _layer(w, "conv_0", f["conv_0"], "bn_0")
    _reads(w, "conv_1", f["conv_0"])
    _layer(w, "conv_1", f["conv_1"])
    w["convtranspose_0_w"] = f["conv_1"].columns(w["convtranspose_0_w"], 0)
    w["convtranspose_0_w"] = f["convtranspose_0"].rows(w["convtranspose_0_w"], 1)
    w["convtranspose_0_b"] = f["convtranspose_0"].rows(w["convtranspose_0_b"], 0)
    _norm(w, "bn_1", f["convtranspose_0"])
    w["convtranspose_1_w"] = f["convtranspose_0"].columns(w["convtranspose_1_w"], 0)


def _nhwc_tail(w: Weights, f: Folds) -> None:
    _layer(w, "conv_0", f["conv_0"])
    _reads(w, "conv_1", f["conv_0"])
    _layer(w, "conv_1", f["conv_1"])
    rows = w["gemm_0_w"].reshape(3 * 2, 8, 5)  # row i*C + c belongs to channel c
    w["gemm_0_w"] = f["conv_1"].columns(rows, 1).reshape(-1, 5)
    w["reshape_shape"] = np.array([-1, len(w["gemm_0_w"])], np.int64)


SIX = Merge(((0, 3), (1,), (2, 4, 5)))
EIGHT = Merge(((0,), (1, 2, 6), (3, 7), (4,), (5,)))
TEN = Merge(((0, 9), (1, 2, 3), (4, 8), (5,), (6, 7)))
TWELVE = Merge(((0, 11, 2), (1,), (3, 5), (4, 10), (6, 7), (8,), (9,)))
SIXTEEN = Merge(((0, 1), (2, 15), (3,), (4, 8, 12), (5, 6, 7), (9, 10, 11), (13, 14)))
TWO_BLOCKS = Merge(((0, 5), (1, 2), (3, 4), (6,), (7, 8, 9, 10), (11,)))

#: Model, its folds by group, the reference, and the depthwise convolutions with the channels they count.
CASES: dict[str, tuple[str, Folds, Callable[[Weights, Folds], None], dict[str, str]]] = {
    "chain_conv": ("chain_conv", {"conv_0": SIX, "conv_1": EIGHT}, _chain_conv, {}),
    "only_one_group": (
        "chain_conv",
        {"conv_0": Merge(tuple((i,) for i in range(6))), "conv_1": EIGHT},
        _chain_conv,
        {},
    ),
    "residual": ("residual", {"conv_0": EIGHT, "conv_1": EIGHT, "conv_3": SIXTEEN, "conv_4": SIXTEEN}, _residual, {}),
    "flatten_conv": ("flatten_conv", {"conv_0": SIX, "conv_1": EIGHT, "gemm_0": TEN}, _flatten_conv, {}),
    "concat_net": ("concat_net", {"conv_0": SIX, "conv_1": SIX, "conv_2": EIGHT, "conv_3": EIGHT}, _concat_net, {}),
    "depthwise": (
        "depthwise_separable",
        {"conv_0": SIX, "conv_2": TWELVE},
        lambda w, f: _depthwise(w, f, 1),
        {"conv_1": "conv_0"},
    ),
    "depthwise_multiplier": (
        "depthwise_multiplier",
        {"conv_0": SIX, "conv_2": TWELVE},
        lambda w, f: _depthwise(w, f, 2),
        {"conv_1": "conv_0"},
    ),
    "grouped_conv": (
        "grouped_conv",
        {"conv_0": TWO_BLOCKS, "conv_1": TWO_BLOCKS, "conv_2": EIGHT},
        _grouped_conv,
        {},
    ),
    "conv_transpose": (
        "autoencoder",
        {"conv_0": SIX, "conv_1": TEN, "convtranspose_0": EIGHT},
        _conv_transpose,
        {},
    ),
    "nhwc_tail": ("nhwc_tail", {"conv_0": SIX, "conv_1": EIGHT}, _nhwc_tail, {}),
}


def _selection(fold: Fold) -> Fold:
    """Keep the last member of each cluster."""
    assert isinstance(fold, Merge)
    return Select(tuple(sorted(c[-1] for c in fold.clusters)), sum(map(len, fold.clusters)))


def _reference(case: str, folds: Folds) -> onnx.ModelProto:
    name, _, rewrite, counting = CASES[case]
    model = ALL_MODELS[name](1)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    rewrite(weights, folds)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weights[tensor.name]), tensor.name))
    for node in model.graph.node:
        for attr in node.attribute:
            if attr.name == "group" and node.name in counting:
                attr.i = len(_clusters(folds[counting[node.name]]))
    onnx.checker.check_model(model, full_check=True)
    return model


def _folded(case: str, folds: Folds) -> onnx.ModelProto:
    view = load(ALL_MODELS[CASES[case][0]](1))
    analysis = find_groups(view)
    assert [g.name for g in analysis.groups] == list(folds)
    plan = FoldPlan(tuple(analysis.groups), tuple(fold.partition() for fold in folds.values()))
    assert FoldChannels(plan, tuple(analysis.counts))(view).modified
    return to_model(view)


@pytest.mark.parametrize("kind", ["mean", "selection"])
@pytest.mark.parametrize("case", CASES)
def test_fold_equals_the_graph_built_by_hand(case: str, kind: str) -> None:
    folds = CASES[case][1]
    if kind == "selection":
        folds = {name: _selection(fold) for name, fold in folds.items()}
    folded, reference = _folded(case, folds), _reference(case, folds)
    onnx.checker.check_model(folded, full_check=True)

    stored = {t.name: numpy_helper.to_array(t) for t in folded.graph.initializer}
    for reader, expected in zip(folded.graph.node, reference.graph.node, strict=True):
        assert list(reader.attribute) == list(expected.attribute)
        weights = {t.name: numpy_helper.to_array(t) for t in reference.graph.initializer}
        for got, want in zip(reader.input, expected.input, strict=True):  # counts are stored under new names
            if want in weights:
                np.testing.assert_allclose(stored[got], weights[want], rtol=1e-6, atol=1e-6, err_msg=want)

    feeds = random_input(reference, 2)
    for a, b in zip(run(folded, feeds), run(reference, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(run(folded, feeds), run(ALL_MODELS[CASES[case][0]](1), feeds), strict=True):
        assert np.abs(a - b).max() > 1e-3  # the fold is not the identity


def test_any_pair_of_matrices_is_applied() -> None:
    """P to everything that produces channels and Q to everything that consumes them, whatever they hold."""
    rng = np.random.default_rng(0)
    model = ALL_MODELS["flatten_conv"](1)
    view = load(model)
    analysis = find_groups(view)
    group = next(g for g in analysis.groups if g.name == "conv_1")
    encode, decode = rng.standard_normal((5, 8)), rng.standard_normal((8, 5))
    partition = ChannelPartition(np.array([0, 1, 2, 3, 4, 4, 4, 4]), np.arange(5), (encode, decode))
    FoldChannels(FoldPlan((group,), (partition,)), ())(view)
    old = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    filters = np.einsum("kn,nchw->kchw", encode, old["conv_1_w"])
    columns = np.einsum("onp,nk->okp", old["gemm_0_w"].reshape(10, 8, 4), decode).reshape(10, -1)
    np.testing.assert_allclose(view.weight("conv_1_w"), filters, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(view.weight("conv_1_b"), encode @ old["conv_1_b"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(view.weight("gemm_0_w"), columns, rtol=1e-5, atol=1e-5)
