"""Functions of one tensor."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.network import Network

place = Blocks()

_ANY = ("Abs", "Atan", "Asinh", "Celu", "Cos", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish",
        "Neg", "Relu", "Selu", "Shrink", "Sigmoid", "Sin", "Softplus", "Softsign", "Swish", "Tanh",
        "ThresholdedRelu")  # fmt: skip


@place(*_ANY, weight=0.6)
def _unary(g: Network, x: str, op: str) -> str:
    return g.same(op, x)


@place("Identity", weight=0.6)
def _identity(g: Network, x: str, op: str) -> str:
    return g.same(op, x)


@place("Ceil", "Floor", "Round", "Sign", weight=0.4)
def _step(g: Network, x: str, op: str) -> str:
    return g.same(op, g.times(x, 2.0))


@place("Acos", "Asin", "Atanh", "Cosh", "Exp", "Sinh", "Tan", weight=0.5)
def _of_bounded(g: Network, x: str, op: str) -> str:
    return g.same(op, g.bounded(x))


@place("Log", "Reciprocal", "Sqrt", weight=0.5)
def _of_positive(g: Network, x: str, op: str) -> str:
    return g.same(op, g.positive(x, 0.3))


@place("Acosh", weight=0.5)
def _acosh(g: Network, x: str, op: str) -> str:
    return g.same(op, g.positive(x, 1.2))


@place("IsInf", "IsNaN", weight=0.4)
def _is_odd(g: Network, x: str, op: str) -> str:
    return g.same("Add", g.cast(g.same(op, x)), x)


@place("Clip", weight=0.6)
def _clip(g: Network, x: str, op: str) -> str:
    if g.opset < 11:
        return g.same(op, x, min=-0.8, max=1.5)
    return g.same(op, x, g.const(-0.8), g.const(1.5)) if g.chance(0.6) else g.same(op, x, "", g.const(1.5))


@place("Cast", weight=0.6)
def _cast(g: Network, x: str, op: str) -> str:
    return g.cast(g.cast(g.times(x, 3.0), g.choice([TensorProto.INT32, TensorProto.INT64])))


@place("CastLike", weight=0.6)
def _cast_like(g: Network, x: str, op: str) -> str:
    return g.same(op, x, g.inputs[0].name if g.inputs[0].type.tensor_type.elem_type != TensorProto.INT64 else x)


@place("Dropout", weight=0.6)
def _dropout(g: Network, x: str, op: str) -> str:
    return g.same(op, x, g.const(0.3), g.const(np.array(False))) if g.opset >= 12 and g.chance(0.5) else g.same(op, x)


@place("PRelu", weight=0.8)
def _prelu(g: Network, x: str, op: str) -> str:
    shape = g.shapes[x]
    dims = g.choice([(1,), (shape[0], *[1] * (len(shape) - 1)), (shape[-1],)])
    return g.same(op, x, g.const(g.uniform(0.05, 0.5, *dims)))
