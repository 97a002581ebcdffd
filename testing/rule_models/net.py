"""The network around an operator: Conv, the operator, a layer that reads its result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, defs

from testing.graph_builder import GraphBuilder

IMAGE = (3, 8, 8)
WIDTH = 6
Middle = Callable[[GraphBuilder, str], str]
#: Operators that opset 17 does not have.
_NEWER = {
    "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Gelu", "GroupNormalization", "Mish", "RMSNormalization",
    "Swish",
}  # fmt: skip


def build_net(op: str, middle: Middle, opset: int) -> onnx.ModelProto:
    version = int(defs.get_schema(op).since_version) if op in _NEWER else opset
    g = GraphBuilder(op, 1, IMAGE, version, ir_version=8 if version < 19 else 10)
    g.domains["com.microsoft"] = 1
    h = middle(g, g.sigmoid(g.conv("x", WIDTH)))
    if len(g.shapes[h]) == 3:
        h = g.flatten(g.relu(g.conv(h, 8)))
    g.output(g.gemm(h, 5))
    return g.build()


def vector(g: GraphBuilder, name: str, low: float = 0.5, high: float = 1.5) -> str:
    return g.constant(name, g.uniform(low, high, WIDTH, 1, 1))


def plus(g: GraphBuilder, x: str, value: float) -> str:
    return g.node("Add", [x, g.constant(f"plus_{x}_{value}", np.array(value, np.float32))], g.shapes[x])


def times(g: GraphBuilder, x: str, value: float) -> str:
    return g.node("Mul", [x, g.constant(f"times_{x}_{value}", np.array(value, np.float32))], g.shapes[x])


def cast(g: GraphBuilder, x: str, to: int = TensorProto.FLOAT) -> str:
    return g.node("Cast", [x], g.shapes[x], to=to)


def is_large(g: GraphBuilder, x: str, name: str) -> str:
    return g.node("Greater", [x, vector(g, name, 0.3, 0.7)], g.shapes[x])
