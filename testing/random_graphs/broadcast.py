"""Functions of several tensors that broadcast."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import MICROSOFT
from testing.random_graphs.network import Network

place = Blocks()


def _threshold(g: Network, x: str) -> str:
    return g.same("Greater", x, g.broadcast_constant(x, -0.5, 0.5))


@place("Not", weight=0.6)
def _not(g: Network, x: str, op: str) -> str:
    return g.cast(g.same(op, _threshold(g, x)))


@place("And", "Or", "Xor", weight=0.6)
def _logical(g: Network, x: str, op: str) -> str:
    y = g.twin(x)
    return g.cast(g.same(op, _threshold(g, x), _threshold(g, y)))


@place("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", weight=0.5)
def _comparison(g: Network, x: str, op: str) -> str:
    if op == "Equal":
        a = g.cast(g.times(x, 2.0), TensorProto.INT32)
        other = g.const(g.rng.integers(-1, 2, (g.shapes[x][0], *[1] * (len(g.shapes[x]) - 1))).astype(np.int32))
        return g.cast(g.same(op, a, other))
    other = g.twin(x) if g.chance(0.5) else g.broadcast_constant(x, -0.5, 0.5)
    return g.same("Mul", g.cast(g.same(op, x, other)), x)


@place("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", weight=0.5)
def _bitwise(g: Network, x: str, op: str) -> str:
    a = g.cast(g.times(g.same("Sigmoid", x), 9.0), TensorProto.INT32)
    if op == "BitwiseNot":
        return g.times(g.cast(g.same(op, a)), 0.2)
    if g.chance(0.5):
        b = g.const(g.rng.integers(0, 9, (g.shapes[x][0], *[1] * (len(g.shapes[x]) - 1))).astype(np.int32))
    else:
        b = g.cast(g.times(g.same("Sigmoid", g.twin(x)), 9.0), TensorProto.INT32)
    return g.times(g.cast(g.same(op, a, b)), 0.2)


@place("Add", "Sub", "Mul", weight=1.5)
def _arithmetic(g: Network, x: str, op: str) -> str:
    kind = g.integer(0, 4)
    if kind == 0:
        return g.same(op, x, x)
    if kind <= 2:
        c = g.broadcast_constant(x, -1.5, 1.5)
        return g.same(op, x, c) if g.chance(0.5) else g.node(op, [c, x], g.shapes[x])
    return g.same(op, x, g.twin(x))


@place("Div", "Pow", "Mod", weight=0.6)
def _domain_bound(g: Network, x: str, op: str) -> str:
    attrs = {"fmod": 1} if op == "Mod" else {}
    if op == "Pow":
        x = g.positive(x, 0.2)
        return g.same(op, x, g.broadcast_constant(x) if g.chance(0.6) else g.bounded(g.twin(x)))
    other = g.broadcast_constant(x) if g.chance(0.6) else g.positive(g.twin(x), 0.5)
    if op == "Div" and g.chance(0.3):
        return g.node(op, [g.broadcast_constant(x), g.positive(x, 0.5)], g.shapes[x])
    return g.same(op, x, other, **attrs)


@place("Max", "Min", "Mean", "Sum", weight=0.8)
def _variadic(g: Network, x: str, op: str) -> str:
    others = [g.twin(x) if g.chance(0.6) else g.broadcast_constant(x) for _ in range(g.integer(0, 3))]
    return g.same(op, x, *others)


@place("Where", weight=0.8)
def _where(g: Network, x: str, op: str) -> str:
    y = g.twin(x) if g.chance(0.6) else g.broadcast_constant(x)
    return g.node(op, [_threshold(g, x), *([x, y] if g.chance(0.5) else [y, x])], g.shapes[x])


@place("Outer", ranks=(2, 3))
def _outer(g: Network, x: str, op: str) -> str:
    """Broadcast of an activation against another one along an axis."""
    axis = g.integer(1, len(g.shapes[x]))
    narrow = g.reduce(g.choice(["ReduceMean", "ReduceMax"]), x, [axis], 1)
    return g.same(g.choice(["Add", "Mul", "Sub"]), x, narrow)


@place("BiasGelu", "FastGelu", "QuickGelu", "Gelu-microsoft", weight=0.6)
def _microsoft_gelu(g: Network, x: str, op: str) -> str:
    bias = (
        [g.const(g.normal(g.shapes[x][-1], std=0.3))]
        if op == "BiasGelu" or (op == "FastGelu" and g.chance(0.5))
        else []
    )
    return g.same(op.removesuffix("-microsoft"), x, *bias, domain=MICROSOFT)
