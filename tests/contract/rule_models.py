"""One small network per operator that has a channel rule: Conv, the operator, a layer that reads its result.

The channels of the first Conv must come through the operator, so that folding them goes through its rule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, defs

from onnxfold.channels.rules.broadcast import _ADDITIVE, _OTHERS
from onnxfold.channels.rules.elementwise import UNARY
from tests.graph_builder import GraphBuilder

IMAGE = (3, 8, 8)
WIDTH = 6
Middle = Callable[[GraphBuilder, str], str]

_BOOL_RESULT = {"IsInf", "IsNaN"}
_COMPARISONS = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
_LOGICAL = {"And", "Or", "Xor"}
_BITWISE = {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}

#: Operators that opset 17 does not have.
_NEWER = {"BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Gelu", "Mish", "Swish"}


def _net(op: str, middle: Middle, opset: int) -> onnx.ModelProto:
    version = int(defs.get_schema(op).since_version) if op in _NEWER else opset
    g = GraphBuilder(op, 1, IMAGE, version, ir_version=8 if version < 19 else 10)
    h = middle(g, g.sigmoid(g.conv("x", WIDTH)))
    if len(g.shapes[h]) == 3:
        h = g.flatten(g.relu(g.conv(h, 8)))
    g.output(g.gemm(h, 5))
    return g.build()


def _vector(g: GraphBuilder, name: str, low: float = 0.5, high: float = 1.5) -> str:
    return g.constant(name, g.uniform(low, high, WIDTH, 1, 1))


def _plus(g: GraphBuilder, x: str, value: float) -> str:
    return g.node("Add", [x, g.constant(f"plus_{x}_{value}", np.array(value, np.float32))], g.shapes[x])


def _times(g: GraphBuilder, x: str, value: float) -> str:
    return g.node("Mul", [x, g.constant(f"times_{x}_{value}", np.array(value, np.float32))], g.shapes[x])


def _cast(g: GraphBuilder, x: str, to: int = TensorProto.FLOAT) -> str:
    return g.node("Cast", [x], g.shapes[x], to=to)


def _is_large(g: GraphBuilder, x: str, name: str) -> str:
    return g.node("Greater", [x, _vector(g, name, 0.3, 0.7)], g.shapes[x])


def _unary(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        if op == "Cast":
            return _cast(g, _cast(g, _times(g, x, 9.0), TensorProto.INT32))
        if op == "Not":
            return _cast(g, g.unary(op, _is_large(g, x, "threshold")))
        if op == "BitwiseNot":
            return _cast(g, g.unary(op, _cast(g, _times(g, x, 9.0), TensorProto.INT32)))
        if op == "Acosh":
            x = _plus(g, x, 1.0)
        elif op in ("Ceil", "Floor", "Round", "Sign"):
            x = _plus(g, _times(g, x, 4.0), -2.0)
        y = g.unary(op, x)
        return _cast(g, y) if op in _BOOL_RESULT else y

    return middle


def _binary(op: str) -> Middle:
    """The operator with a constant per channel, and with a second activation."""

    def middle(g: GraphBuilder, x: str) -> str:
        other = g.sigmoid(g.conv("x", WIDTH))
        if op in _LOGICAL:
            both = [_is_large(g, x, "low"), _is_large(g, other, "high")]
            return _cast(g, g.node(op, both, g.shapes[x]))
        if op in _BITWISE:
            a, b = (_cast(g, _times(g, t, 9.0), TensorProto.INT32) for t in (x, other))
            constant = g.constant("bits", np.arange(1, WIDTH + 1, dtype=np.int32).reshape(-1, 1, 1))
            return _cast(g, g.node(op, [g.node(op, [a, constant], g.shapes[x]), b], g.shapes[x]))
        constant = _vector(g, "constant")
        if op in _COMPARISONS:
            with_constant, with_other = (g.node(op, [x, y], g.shapes[x]) for y in (constant, other))
            return g.add(g.mul(_cast(g, with_constant), x), g.mul(_cast(g, with_other), other))
        if op == "Where":
            inner = g.node(op, [_is_large(g, x, "high"), constant, x], g.shapes[x])
            return g.node(op, [_is_large(g, x, "low"), inner, other], g.shapes[x])
        attrs = {"fmod": 1} if op == "Mod" else {}
        y = g.node(op, [x, constant], g.shapes[x], **attrs)
        return g.node(op, [y, _plus(g, other, 0.5)], g.shapes[x], **attrs)

    return middle


def _pool(op: str, **attrs: object) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        size = 1 if op.startswith("Global") else 4
        window = {} if op.startswith("Global") else {"kernel_shape": [2, 2], "strides": [2, 2]}
        return g.node(op, [x], [WIDTH, size, size], **window, **attrs)

    return middle


def _reduce(op: str, opset: int, keepdims: int) -> Middle:
    """Over the spatial axes; as an attribute where the operator has it, else as an input."""

    def middle(g: GraphBuilder, x: str) -> str:
        shape = [WIDTH, 1, 1] if keepdims else [WIDTH]
        if opset < (13 if op == "ReduceSum" else 18):
            return g.node(op, [x], shape, axes=[-2, -1], keepdims=keepdims)
        return g.node(op, [x, g.constant("axes", np.array([2, 3], np.int64))], shape, keepdims=keepdims)

    return middle


def _arg(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        return _cast(g, g.node(op, [x], [WIDTH, 1, 8], axis=2))

    return middle


def _pad(opset: int) -> Middle:
    """Two channels in front and one behind, and one position around the image; added to a wider stream."""
    pads = [0, 2, 1, 1, 0, 1, 1, 1]

    def middle(g: GraphBuilder, x: str) -> str:
        shape = [WIDTH + 3, 10, 10]
        if opset < 11:
            y = g.node("Pad", [x], shape, pads=pads)
        elif opset < 18:
            y = g.node("Pad", [x, g.constant("pads", np.array(pads, np.int64))], shape)
        else:
            part = g.constant("pads", np.array([1, 2, 1, 1, 1, 1], np.int64))
            y = g.node("Pad", [x, part, "", g.constant("axes", np.array([3, 1, -2], np.int64))], shape)
        return g.add(y, g.conv("x", WIDTH + 3, 3, pad=2))

    return middle


def _squeeze(opset: int) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        pooled, name = g.global_average_pool(x), "axes"
        if opset < 13:
            flat = g.node("Squeeze", [pooled], [WIDTH], axes=[2, -1])
            return g.node("Unsqueeze", [flat], [WIDTH, 1, 1], axes=[2, 3])
        axes = g.constant(name, np.array([2, 3], np.int64))
        return g.node("Unsqueeze", [g.node("Squeeze", [pooled, axes], [WIDTH]), axes], [WIDTH, 1, 1])

    return middle


def _shape(g: GraphBuilder, x: str) -> str:
    """The height of the image scales it: only that axis must stay."""
    shape = g.node("Shape", [x], [])
    height = g.node("Gather", [shape, g.constant("height", np.array(2, np.int64))], [], axis=0)
    return g.mul(x, _cast(g, height))


def _size(g: GraphBuilder, x: str) -> str:
    """The number of elements of another tensor scales the image."""
    return g.mul(x, _cast(g, g.node("Size", [g.conv("x", 4, 1)], [])))


def _reshape(g: GraphBuilder, x: str) -> str:
    target = g.constant("target", np.array([0, WIDTH, 4, 16], np.int64))
    back = g.constant("back", np.array([-1, WIDTH, 8, 8], np.int64))
    return g.node("Reshape", [g.node("Reshape", [x, target], [WIDTH, 4, 16]), back], [WIDTH, 8, 8])


def _conv_transpose(g: GraphBuilder, x: str) -> str:
    dense = g.conv_transpose(x, 8)
    return g.conv_transpose(g.conv_transpose(dense, 8, groups=8), 8, groups=2)


def _matmul(g: GraphBuilder, x: str) -> str:
    """Constant on the left (mixing channels), then two activations, of which only the outer axes are channels."""
    flat = g.node("Reshape", [x, g.constant("target", np.array([0, WIDTH, 64], np.int64))], [WIDTH, 64])
    left = g.node("MatMul", [g.constant("left", g.normal(8, WIDTH)), flat], [8, 64])
    other = g.node("Transpose", [left], [64, 8], perm=[0, 2, 1])
    outer = g.node("MatMul", [flat, other], [WIDTH, 8])
    mixed = g.matmul_add(g.node("Transpose", [outer], [8, WIDTH], perm=[0, 2, 1]), 3)
    return g.node("ReduceMean", [mixed], [8], axes=[-1], keepdims=0)


def _gemm(g: GraphBuilder, x: str) -> str:
    return g.relu(g.gemm(g.flatten(x), 8, trans_b=False, alpha=0.5))


def _batch_norm(g: GraphBuilder, x: str) -> str:
    return g.batch_norm(x)


def _concat(g: GraphBuilder, x: str) -> str:
    return g.concat(x, g.conv("x", 4), x)


def _flatten(g: GraphBuilder, x: str) -> str:
    return g.flatten(x)


def _transpose(g: GraphBuilder, x: str) -> str:
    moved = g.node("Transpose", [x], [8, 8, WIDTH], perm=[0, 2, 3, 1])
    return g.node("Transpose", [g.relu(moved)], [WIDTH, 8, 8], perm=[0, 3, 1, 2])


def _cast_like(g: GraphBuilder, x: str) -> str:
    return g.node("CastLike", [x, "x"], g.shapes[x])


def _dropout(g: GraphBuilder, x: str) -> str:
    return g.node("Dropout", [x], g.shapes[x])


def _conv(g: GraphBuilder, x: str) -> str:
    return g.conv(g.conv(x, 2 * WIDTH, groups=WIDTH), 2 * WIDTH, groups=3)


def _build_table() -> dict[str, Callable[[], onnx.ModelProto]]:
    table: dict[str, Callable[[], onnx.ModelProto]] = {}

    def add(name: str, op: str, middle: Middle, opset: int = 17) -> None:
        table[name] = lambda: _net(op, middle, opset)

    for op in UNARY:
        add(op, op, _unary(op))
    for op in (*_ADDITIVE, *_OTHERS):
        add(op, op, _binary(op))
    for op in ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"):
        add(op, op, _pool(op))
    for reduction in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"):
        op = f"Reduce{reduction}"
        for opset in (12, 18):
            for keepdims in (0, 1):
                add(f"{op}-{opset}-keepdims{keepdims}", op, _reduce(op, opset, keepdims), opset)
    for op in ("ArgMax", "ArgMin"):
        add(op, op, _arg(op))
    for opset in (10, 17, 18):
        add(f"Pad-{opset}", "Pad", _pad(opset), opset)
    for opset in (12, 13):
        add(f"Squeeze-Unsqueeze-{opset}", "Squeeze", _squeeze(opset), opset)
    for op, middle in {
        "BatchNormalization": _batch_norm, "CastLike": _cast_like, "Concat": _concat, "Conv": _conv,
        "ConvTranspose": _conv_transpose, "Dropout": _dropout, "Flatten": _flatten, "Gemm": _gemm, "MatMul": _matmul,
        "Reshape": _reshape, "Shape": _shape, "Size": _size, "Transpose": _transpose,
    }.items():  # fmt: skip
        add(op, op, middle)
    add("PRelu", "PRelu", lambda g, x: g.prelu(_plus(g, x, -0.5)))
    return table


RULE_MODELS = _build_table()
