"""Pools, reductions and orders."""

from __future__ import annotations

import numpy as np

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import DoesNotFitError
from testing.random_graphs.network import Network

place = Blocks()


@place("AveragePool", "MaxPool", "LpPool", ranks=(2, 4), weight=0.8)
def _pool(g: Network, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    if min(spatial) < 2:
        raise DoesNotFitError
    rank, stride = len(spatial), g.integer(1, 2)
    if op == "LpPool" and g.opset < 11 and stride == 1:
        stride = 2
    shape = [channels, *[(s - 2) // stride + 1 for s in spatial]]
    return g.node(op, [x], shape, kernel_shape=[2] * rank, strides=[stride] * rank)


@place("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", ranks=(2, 4), weight=0.6)
def _global_pool(g: Network, x: str, op: str) -> str:
    return g.node(op, [x], [g.shapes[x][0], *[1] * (len(g.shapes[x]) - 1)])


_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
               "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip


@place(*_REDUCTIONS, ranks=(2, 4), weight=0.5)
def _reduce(g: Network, x: str, op: str) -> str:
    rank = len(g.shapes[x])
    axes = sorted({g.channel_axis(x, 0.3) for _ in range(g.integer(1, rank - 1))})
    if g.chance(0.3):
        axes = [a - rank - 1 for a in axes] if g.opset >= 11 else axes
    if op in ("ReduceLogSum", "ReduceL2"):
        x = g.positive(x, 0.2)
    if op == "ReduceProd":
        x = g.bounded(x, 1.2)
    y = g.reduce(op, x, axes, g.integer(0, 1))
    return g.same("Tanh", y) if op in ("ReduceL1", "ReduceSum", "ReduceSumSquare") else y


@place("ArgMax", "ArgMin", ranks=(2, 4), weight=0.5)
def _arg(g: Network, x: str, op: str) -> str:
    axis, keepdims = g.channel_axis(x, 0.3), g.integer(0, 1)
    shape = [1 if i == axis else d for i, d in enumerate(g.shapes[x], 1) if keepdims or i != axis]
    return g.times(g.cast(g.node(op, [x], shape, axis=axis, keepdims=keepdims)), 0.3)


@place("Trilu", ranks=(2, 4), weight=0.6)
def _trilu(g: Network, x: str, op: str) -> str:
    k = [g.const(np.array(g.integer(-1, 1), np.int64))] if g.chance(0.5) else []
    return g.same(op, x, *k, upper=g.integer(0, 1))


@place("TopK", weight=0.6)
def _top_k(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x)
    shape = list(g.shapes[x])
    shape[axis - 1] = k = g.integer(1, shape[axis - 1])
    if g.opset < 10:
        return g.nodes_out(op, [x], [tuple(shape)] * 2, axis=axis, k=k)[0]
    values, indices = g.nodes_out(op, [x, g.const([k])], [tuple(shape)] * 2, axis=axis)
    return g.times(g.cast(indices), 0.2) if g.chance(0.15) else values
