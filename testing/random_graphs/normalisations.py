"""Normalisations, and other operators that couple the positions of an axis."""

from __future__ import annotations

import math

import numpy as np

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import MICROSOFT, DoesNotFitError
from testing.random_graphs.network import Network

place = Blocks()


@place("Softmax", "LogSoftmax", "Hardmax", weight=0.7)
def _softmax(g: Network, x: str, op: str) -> str:
    axis = g.integer(1, len(g.shapes[x]))
    return g.same(op, x, axis=axis if g.opset < 11 or g.chance(0.5) else axis - len(g.shapes[x]) - 1)


@place("InstanceNormalization", ranks=(2, 4), weight=0.7)
def _instance_norm(g: Network, x: str, op: str) -> str:
    c, *spatial = g.shapes[x]
    if math.prod(spatial) < 3:
        raise DoesNotFitError
    if c % 2 == 0 and g.chance(0.4):  # GroupNormalization, as exporters write it before operator set 18
        rows = g.node("Reshape", [x, g.const(np.array([0, 2, -1], np.int64))], [2, c // 2 * math.prod(spatial)])
        normed = g.same(op, rows, g.const(g.normal(2, mean=1, std=0.4)), g.const(g.normal(2, std=0.3)), epsilon=0.01)
        return g.reshape(normed, [c, *spatial])
    return g.same(op, x, g.const(g.normal(c, mean=1, std=0.4)), g.const(g.normal(c, std=0.3)), epsilon=0.01)


@place("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", weight=0.7)
def _layer_norm(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x)
    dims = g.shapes[x][axis - 1 :]
    if op == "SimplifiedLayerNormalization":
        axis, dims = len(g.shapes[x]), g.shapes[x][-1:]
    args = [g.const(g.normal(*dims, mean=1, std=0.4))]
    if op == "LayerNormalization" and g.chance(0.6):
        args.append(g.const(g.normal(*dims, std=0.3)))
    return g.same(op, x, *args, axis=axis if g.chance(0.5) else axis - len(g.shapes[x]) - 1, epsilon=0.01)


@place("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", ranks=(2, 2), weight=0.7)
def _skip_norm(g: Network, x: str, op: str) -> str:
    scale = g.const(g.normal(g.shapes[x][-1], mean=1, std=0.4))
    return g.same(op, x, g.twin(x), scale, domain=MICROSOFT, epsilon=0.01)


@place("GroupNormalization", ranks=(2, 4), weight=0.7)
def _group_norm(g: Network, x: str, op: str) -> str:
    c = g.shapes[x][0]
    groups = 2 if c % 2 == 0 else 1
    size = c if g.opset >= 21 else groups
    return g.same(op, x, g.const(g.uniform(0.5, 1.5, size)), g.const(g.normal(size)), num_groups=groups, epsilon=0.01)


@place("LRN", ranks=(3, 3), weight=0.6)
def _lrn(g: Network, x: str, op: str) -> str:
    return g.same(op, x, size=3)


@place("LpNormalization", weight=0.6)
def _lp_norm(g: Network, x: str, op: str) -> str:
    return g.same(op, g.positive(x, 0.2), axis=g.channel_axis(x), p=g.integer(1, 2))


@place("CumSum", weight=0.6)
def _cum_sum(g: Network, x: str, op: str) -> str:
    axis = g.integer(1, len(g.shapes[x]))
    return g.times(g.same(op, x, g.const(np.array(axis, np.int64))), 0.4)
