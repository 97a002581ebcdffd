"""Softmax, LogSoftmax, Hardmax."""

import math
from typing import Any

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import Dynamic, plain
from onnxfold.export.tflite.layout_rules import LastAxis, LayoutRule, with_last
from onnxfold.export.tflite.registry import converter

_CODES = {"Softmax": "SOFTMAX", "LogSoftmax": "LOG_SOFTMAX"}


def _apply(op: Op, x: Value) -> Value:
    code = _CODES[op.op_type]
    options: dict[str, Any] = {"beta": 1.0} if code == "SOFTMAX" else {}
    return op.graph.op(code, [x], x.shape, **options)


@converter("Softmax", "LogSoftmax", since=13, layouts=LastAxis(-1))
def softmax(op: Op) -> None:
    """SOFTMAX, LOG_SOFTMAX along the last axis of a layout; between TRANSPOSEs where no layout has the axis there."""
    rank = len(op.shape())
    axis = op.integer("axis", -1) % max(rank, 1)
    layout = with_last(op.planned(), axis)
    x = op.read(0, layout)
    if layout.perm[-1] == axis:
        op.write(_apply(op, x), layout)
        return
    perm = [*(a for a in range(rank) if a != axis), axis]
    y = _apply(op, op.graph.transpose(x, perm))
    op.write(op.graph.transpose(y, [perm.index(i) for i in range(rank)]), layout)


@converter("Softmax", "LogSoftmax", since=1, layouts=LayoutRule())
def softmax_of_matrix(op: Op) -> None:
    """Before operator set 13: over all axes from the given one on, taken as one."""
    shape = op.shape()
    axis = op.integer("axis", 1) % len(shape)
    if any(isinstance(d, Dynamic) for d in shape[axis:]):
        op.refuse("it normalises over a dimension that is free: fix it with --input-shapes")
    x = op.read(0, plain(len(shape)))
    merged = (*shape[:axis], math.prod(int(d) for d in shape[axis:]))
    op.write(op.graph.reshape(_apply(op, op.graph.reshape(x, merged)), shape))
