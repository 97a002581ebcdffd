"""Multiply-accumulate operations per sample."""

import numpy as np
from onnx import NodeProto

from onnxfold.channels.layers import LINEAR_OPS
from onnxfold.graph.view import GraphView, attr_int


def count_macs(view: GraphView) -> int | None:
    """Return the multiply-accumulates of Conv, ConvTranspose, Gemm and MatMul for a batch of one.

    Unknown leading dimensions count as one; None where another dimension is unknown.
    """
    total = 0
    for node in view.nodes:
        if node.op_type in LINEAR_OPS:
            macs = _node_macs(view, node)
            if macs is None:
                return None
            total += macs
    return total


def _node_macs(view: GraphView, node: NodeProto) -> int | None:
    x, w = view.shape(node.input[0]), view.shape(node.input[1])
    y = view.shape(node.output[0])
    if x is None or w is None or y is None:
        return None
    if node.op_type == "ConvTranspose":  # every input element meets the filters of its channel
        per_element = int(np.prod([d or 1 for d in w[1:]], dtype=np.int64))
        return _elements(x, per_element)
    if node.op_type in ("Conv", "FusedConv"):
        return _elements(y, int(np.prod([d or 1 for d in w[1:]], dtype=np.int64)))
    inner = x[0] if node.op_type in ("Gemm", "FusedGemm") and attr_int(node, "transA", 0) else x[-1]
    return None if inner is None else _elements(y, inner)


def _elements(shape: tuple[int | None, ...], factor: int) -> int | None:
    rest = shape[1:]
    if any(d is None for d in rest):
        return None
    return int(np.prod([d or 0 for d in rest], dtype=np.int64)) * factor
