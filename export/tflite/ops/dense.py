"""Gemm and MatMul: FULLY_CONNECTED with constant weights, BATCH_MATMUL without."""

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import DenseProduct, Layout, plain
from onnxfold.graph.tensors import Array


@converter("Gemm", layouts=DenseProduct())
def gemm(op: Op) -> None:
    """Alpha A B + beta C; a flattened feature map as A permutes the columns of constant weights."""
    alpha, beta = op.number("alpha", 1.0), op.number("beta", 1.0)
    turned_a, turned_b = bool(op.integer("transA", 0)), bool(op.integer("transB", 0))
    result = op.result()
    if op.is_constant(1):
        layout = op.assigned_layout(0) if not turned_a else plain(2)
        x = op.read(0, layout)
        x = op.graph.transpose(x, (1, 0)) if turned_a else x
        out = op.planned_layout() if op.planned_layout().block and not turned_a else plain(2)

        def weights(w: Array) -> Array:
            w = _reorder(w if turned_b else w.T, layout, out)
            return w if alpha == 1.0 else (w * np.float32(alpha)).astype(w.dtype)

        bias, rest = _bias(op, out, int(result[1]), beta)
        y = op.graph.op("FULLY_CONNECTED", [x, op.weight(1, weights), bias], result)
        op.write(y if rest is None else op.graph.op("ADD", [y, rest], result), out)
        return
    y = op.graph.op("BATCH_MATMUL", [op.read(0), op.read(1)], result, adjX=turned_a, adjY=turned_b)
    y = y if alpha == 1.0 else op.graph.op("MUL", [y, op.graph.constant(np.array([alpha], np.float32))], result)
    if op.has_input(2):
        term = op.operand(2, plain(2))
        if beta != 1.0:
            term = op.graph.op("MUL", [term, op.graph.constant(np.array([beta], np.float32))], term.shape)
        y = op.graph.op("ADD", [y, term], result)
    op.write(y)


def _reorder(weights: Array, layout: Layout, out: Layout) -> Array:
    """Return (outputs, inputs) in the orders that flattened feature maps have in TFLite."""
    weights = weights[:, layout.order()] if layout.block else weights
    return weights[out.order()] if out.block else weights


def _bias(op: Op, out: Layout, width: int, beta: float) -> tuple[Value, Value | None]:
    """Return C as a bias vector, and as a term of its own where it is none."""
    zero = op.graph.constant(np.zeros(width, np.float32), "no_bias")
    if not op.has_input(2):
        return zero, None
    shape = op.shape(2)
    if op.is_constant(2) and all(d == 1 for d in shape[:-1]):
        order = out.order() if out.block else np.arange(width)
        return op.weight(
            2, lambda c: np.broadcast_to(c.reshape(-1) * np.float32(beta), (width,))[order].astype(np.float32)
        ), None
    term = op.operand(2, out)
    if beta != 1.0:
        term = op.graph.op("MUL", [term, op.graph.constant(np.array([beta], np.float32))], term.shape)
    return zero, term


@converter("MatMul", layouts=DenseProduct())
def matmul(op: Op) -> None:
    """A matrix product as numpy's; constant matrices become weights."""
    a, b, result = op.shape(0), op.shape(1), op.result()
    if op.is_constant(1) and len(b) <= 2 and len(a) > 1:
        layout = op.assigned_layout(0) if op.assigned_layout(0).block else plain(len(a))
        x = op.read(0, layout)
        out = op.planned_layout() if op.planned_layout().block and len(b) == 2 else plain(len(result))

        def weights(w: Array) -> Array:
            return _reorder(w.reshape(w.shape[0], -1).T, layout, out)

        kernel = op.weight(1, weights)
        filters = int(kernel.shape[0])
        zero = op.graph.constant(np.zeros(filters, np.float32), "no_bias")
        shape = (*x.shape[:-1], filters)
        keep = len(shape) > 2
        y = op.graph.op("FULLY_CONNECTED", [x, kernel, zero], shape, version=5 if keep else 1, keepNumDims=keep)
        op.write(op.graph.reshape(y, result), out)
        return
    x, y = op.read(0), op.read(1)
    x = op.graph.reshape(x, (1, *a)) if len(a) == 1 else x
    y = op.graph.reshape(y, (*b, 1)) if len(b) == 1 else y
    full = (*result, *((1,) if len(b) == 1 else ()))
    full = (*full[:-1], 1, *full[-1:]) if len(a) == 1 else full
    op.write(op.graph.reshape(op.graph.op("BATCH_MATMUL", [x, y], full), result))
