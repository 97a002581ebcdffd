"""Functions of one tensor and of several."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle, cast, is_large, plus, times, vector

_BOOL_RESULT = {"IsInf", "IsNaN"}
_COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LOGICAL = {"And", "Or", "Xor"}
_BITWISE = {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}


def through_unary(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        if op == "Cast":
            return cast(g, cast(g, times(g, x, 9.0), TensorProto.INT32))
        if op == "Not":
            return cast(g, g.unary(op, is_large(g, x, "threshold")))
        if op == "BitwiseNot":
            return cast(g, g.unary(op, cast(g, times(g, x, 9.0), TensorProto.INT32)))
        if op == "Acosh":
            x = plus(g, x, 1.0)
        elif op in ("Ceil", "Floor", "Round", "Sign"):
            x = plus(g, times(g, x, 4.0), -2.0)
        y = g.unary(op, x)
        return cast(g, y) if op in _BOOL_RESULT else y

    return middle


def through_binary(op: str) -> Middle:
    """The operator with a constant per channel, and with a second activation."""

    def middle(g: GraphBuilder, x: str) -> str:
        other = g.sigmoid(g.conv("x", WIDTH))
        if op in _LOGICAL:
            both = [is_large(g, x, "low"), is_large(g, other, "high")]
            return cast(g, g.node(op, both, g.shapes[x]))
        if op in _BITWISE:
            a, b = (cast(g, times(g, t, 9.0), TensorProto.INT32) for t in (x, other))
            constant = g.constant("bits", np.arange(1, WIDTH + 1, dtype=np.int32).reshape(-1, 1, 1))
            return cast(g, g.node(op, [g.node(op, [a, constant], g.shapes[x]), b], g.shapes[x]))
        constant = vector(g, "constant")
        if op in _COMPARISONS:
            with_constant, with_other = (g.node(op, [x, y], g.shapes[x]) for y in (constant, other))
            return g.add(g.mul(cast(g, with_constant), x), g.mul(cast(g, with_other), other))
        if op == "Where":
            inner = g.node(op, [is_large(g, x, "high"), constant, x], g.shapes[x])
            return g.node(op, [is_large(g, x, "low"), inner, other], g.shapes[x])
        attrs = {"fmod": 1} if op == "Mod" else {}
        y = g.node(op, [x, constant], g.shapes[x], **attrs)
        return g.node(op, [y, plus(g, other, 0.5)], g.shapes[x], **attrs)

    return middle


def through_quantize(g: GraphBuilder, x: str) -> str:
    scale, zero = g.constant("scale", np.float32(1 / 128)), g.constant("zero", np.uint8(3))
    y = g.node("QuantizeLinear", [x, scale, zero], [WIDTH, 8, 8])
    return g.node("DequantizeLinear", [y, scale, zero], [WIDTH, 8, 8])


def through_microsoft_gelu(op: str, bias: bool = False) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        flat = g.flatten(g.global_average_pool(x))
        inputs = [flat, g.constant("gelu_bias", g.normal(WIDTH))] if bias else [flat]
        return g.node(op, inputs, [WIDTH], domain="com.microsoft")

    return middle


def through_cast_like(g: GraphBuilder, x: str) -> str:
    return g.node("CastLike", [x, "x"], g.shapes[x])


def through_dropout(g: GraphBuilder, x: str) -> str:
    return g.node("Dropout", [x], g.shapes[x])
