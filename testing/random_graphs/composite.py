"""Recurrent layers, look-ups, shared weights, residual and gated branches."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import MAX_ELEMENTS, DoesNotFitError
from testing.random_graphs.network import Network

place = Blocks()


@place("LSTM", "GRU", "RNN", ranks=(2, 2), weight=1.5)
def _recurrent(g: Network, x: str, op: str) -> str:
    steps, inputs = g.shapes[x]
    gates, hidden = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], g.integer(2, 6)
    direction = g.choice(["forward", "reverse", "bidirectional"])
    d = 2 if direction == "bidirectional" else 1
    by_step = g.node("Transpose", [x], [], perm=[1, 0, 2])
    args = [
        by_step,
        g.const(g.normal(d, gates * hidden, inputs, std=1 / math.sqrt(inputs))),
        g.const(g.normal(d, gates * hidden, hidden, std=1 / math.sqrt(hidden))),
        g.const(g.normal(d, 2 * gates * hidden, std=0.3)) if g.chance(0.7) else "",
        "",
        g.const(g.normal(d, g.batch, hidden)) if g.batch and g.chance(0.3) else "",
    ]
    if op == "LSTM":
        args += [g.const(g.normal(d, g.batch, hidden)) if g.batch and g.chance(0.3) else ""]
        args += [g.const(g.normal(d, 3 * hidden, std=0.3)) if g.chance(0.4) else ""]
    while args and not args[-1]:
        args.pop()
    attrs = {"linear_before_reset": 1} if op == "GRU" and g.chance(0.5) else {}
    last = g.chance(0.4)
    outs = g.nodes_out(op, args, [None, ()] if last else [()], hidden_size=hidden, direction=direction, **attrs)
    if last:
        y = g.node("Transpose", [outs[1]], [d, hidden], perm=[1, 0, 2])
        return g.reshape(y, [d * hidden]) if g.chance(0.6) else y
    if d == 1 and g.chance(0.5):
        y = g.squeeze_at(outs[0], 1)
        return g.node("Transpose", [y], [steps, hidden], perm=[1, 0, 2])
    y = g.node("Transpose", [outs[0]], [steps, d, hidden], perm=[2, 0, 1, 3])
    return g.reshape(y, [steps, d * hidden])


@place("Gather")
def _embedding(g: Network, x: str, op: str) -> str:
    """A table, looked up by numbers that the tensor itself gives, or by an input of integers."""
    rows, width = g.integer(3, 9), g.width()
    if g.chance(0.4):
        ids = g.add_input((g.integer(1, 5),), integers=rows)
    else:
        ids = g.cast(g.times(g.same("Sigmoid", x), rows - 0.01), TensorProto.INT64)
        if math.prod(g.shapes[ids]) * width > MAX_ELEMENTS or len(g.shapes[ids]) > 3:
            raise DoesNotFitError
    return g.node(op, [g.const(g.normal(rows, width)), ids], [*g.shapes[ids], width])


@place("Siamese", weight=2)
def _siamese(g: Network, x: str, op: str) -> str:
    """The same weight in two layers."""
    other = g.twin(x)
    shape = g.shapes[x]
    if len(shape) > 1 and g.dtype != np.float64:
        a = g.conv(x, g.width(), 1)
        node = next(n for n in g.nodes if a in n.output)
        args = [other, *node.input[1:]]
        if len(args) > 2 and g.chance(0.3):
            args[2] = g.const(g.normal(g.shapes[a][0]))
        b = g.nodes_out("Conv", args, [g.shapes[a]], **{a.name: helper.get_attribute_value(a) for a in node.attribute})[
            0
        ]
    else:
        outputs = g.width()
        weight = g.const(g.normal(shape[-1], outputs, std=1 / math.sqrt(shape[-1])))
        a, b = (g.node("MatMul", [t, weight], [*shape[:-1], outputs]) for t in (x, other))
    return g.same("Add", a, b) if g.chance(0.5) else g.concat([a, g.same("Relu", b)], 1)


@place("Residual", weight=3)
def _residual(g: Network, x: str, op: str) -> str:
    shape = g.shapes[x]
    if len(shape) == 1 or g.dtype == np.float64:
        branch = g.linear(g.activation(g.linear(x, g.width())), shape[-1])
    else:
        branch = g.conv(g.activation(g.conv(x, g.width(), 1)), shape[0], 1)
    return g.activation(g.same("Add", branch, x))


@place("Gate", ranks=(2, 4), weight=2)
def _gate(g: Network, x: str, op: str) -> str:
    """Squeeze and excitation."""
    if g.dtype == np.float64:
        raise DoesNotFitError
    rank = len(g.shapes[x])
    pooled = g.node("GlobalAveragePool", [x], [g.shapes[x][0], *[1] * (rank - 1)])
    gate = g.conv(g.same("Relu", g.conv(pooled, g.width(), 1)), g.shapes[x][0], 1)
    return g.same("Mul", x, g.same("Sigmoid", gate))


@place("BatchNormalization", weight=3)
def _batch_norm(g: Network, x: str, op: str) -> str:
    c = g.shapes[x][0]
    values = [g.normal(c, mean=1, std=0.4), g.normal(c, std=0.3), g.normal(c, std=0.3), g.uniform(0.5, 2.0, c)]
    return g.same(op, x, *[g.const(v) for v in values], epsilon=g.choice([1e-5, 1e-3]))
