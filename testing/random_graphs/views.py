"""Reshapes, transpositions and computed sizes."""

from __future__ import annotations

import math

import numpy as np

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import DoesNotFitError
from testing.random_graphs.network import Network

place = Blocks()


@place("Flatten", ranks=(1, 4))
def _flatten(g: Network, x: str, op: str) -> str:
    return g.flatten(x)


@place("Reshape", weight=2)
def _reshape(g: Network, x: str, op: str) -> str:
    shape = g.shapes[x]
    kind = g.integer(0, 4)
    if kind == 0 and len(shape) > 1:  # join two neighbours
        i = g.integer(0, len(shape) - 2)
        return g.reshape(x, [*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :]])
    if kind == 1 and len(shape) < 4:  # heads
        i = g.choice([0, len(shape) - 1])
        divisors = [d for d in range(2, shape[i]) if shape[i] % d == 0]
        if divisors:
            d = g.choice(divisors)
            return g.reshape(x, [*shape[:i], d, shape[i] // d, *shape[i + 1 :]])
    if kind == 2 and len(shape) > 1:  # there and back
        flat = g.activation(g.reshape(x, [math.prod(shape)]))
        return g.reshape(flat, shape)
    if kind == 3 and len(shape) < 4:
        return g.reshape(x, g.choice([[*shape, 1], [1, *shape]]))
    return g.reshape(x, [math.prod(shape)])


@place("ViewChain", "Shape", ranks=(1, 4), weight=1.5)
def _view_chain(g: Network, x: str, op: str) -> str:
    """x.view(x.size(0), -1), or with all sizes computed."""
    shape = g.shapes[x]
    sizes = g.node("Shape", [x])

    def size(axis: int) -> str:
        if g.chance(0.5):
            part = g.node("Gather", [sizes, g.const(np.array(axis, np.int64))], axis=0)
            return g.node("Unsqueeze", [part], axes=[0]) if g.opset < 13 else g.node("Unsqueeze", [part, g.const([0])])
        return g.node("Gather", [sizes, g.const([axis])], axis=0)

    if g.chance(0.5):
        target = g.node("Concat", [size(0), g.const([-1])], axis=0)
        return g.node("Reshape", [x, target], [math.prod(shape)])
    parts = [size(i) for i in range(len(shape) + 1)] if g.chance(0.5) else [size(0), *[g.const([d]) for d in shape]]
    flat = g.activation(g.flatten(x))
    target = g.node("Concat", parts, axis=0)
    return g.node("Reshape", [flat, target], shape)


@place("Size", weight=0.6)
def _size(g: Network, x: str, op: str) -> str:
    return g.same("Mul", x, g.node("Reciprocal", [g.cast(g.node(op, [g.twin(x)]))]))


@place("Shape", weight=0.5)
def _shape_scale(g: Network, x: str, op: str) -> str:
    sizes = g.node(op, [x])
    axis = g.integer(1, len(g.shapes[x]))
    part = g.node("Gather", [sizes, g.const(np.array(axis, np.int64))], axis=0)
    return g.same("Div", x, g.cast(part))


@place("Squeeze", "Unsqueeze", weight=0.8)
def _squeeze(g: Network, x: str, op: str) -> str:
    shape = g.shapes[x]
    ones = [i for i, d in enumerate(shape, 1) if d == 1]
    if op == "Squeeze" and ones and len(shape) > 1:
        return g.squeeze(x, [g.choice(ones)])
    if len(shape) > 3:
        raise DoesNotFitError
    axis = g.integer(1, len(shape) + 1)
    y = g.unsqueeze(x, [axis])
    return g.squeeze(g.activation(y), [axis]) if op == "Squeeze" else y


@place("Transpose", ranks=(2, 4), weight=1.5)
def _transpose(g: Network, x: str, op: str) -> str:
    rank = len(g.shapes[x])
    if g.chance(0.5):  # NHWC and back
        y = g.transpose(x, [*range(2, rank + 1), 1])
        y = g.linear(y, g.width()) if g.chance(0.3) else g.activation(y)
        return g.transpose(y, [rank, *range(1, rank)])
    return g.transpose(x, [int(p) + 1 for p in g.rng.permutation(rank)])
