"""Normalisations: BatchNormalization without a layer to fuse into; the others by their definitions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxfold.export.tflite.calculator import Calculator
from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import (
    ELEMENTWISE,
    ChannelsLast,
    Dynamic,
    Follow,
    LastAxis,
    LayoutRule,
    channels_last,
    layout_with_last,
    plain,
)
from onnxfold.graph.tensors import Array


def _standardise(c: Calculator, x: Value, axes: list[int], epsilon: float) -> tuple[Value, Value, Value]:
    """Return (x - mean) / sqrt(var + epsilon), the mean, and 1 / sqrt(var + epsilon)."""
    mean = c.reduce("MEAN", x, axes)
    centred = c.sub(x, mean)
    inverse = c.unary("RSQRT", c.add(c.reduce("MEAN", c.mul(centred, centred), axes), epsilon))
    return c.mul(centred, inverse), mean, inverse


@converter("BatchNormalization", layouts=ELEMENTWISE)
def batch_normalization(op: Op) -> None:
    """A MUL and an ADD per channel; in training mode with the statistics of the batch."""
    trains = bool(op.integer("training_mode", 0))
    layout = plain(2) if op.planned_layout().block and trains else op.planned_layout()
    rank, epsilon = len(op.shape()), op.number("epsilon", 1e-5)
    c, x = op.calc, op.read(0, layout)
    names = ("scale", "bias", "mean", "variance")
    scale, bias, mean, variance = (op.required_weight(i + 1, n).astype(np.float64) for i, n in enumerate(names))

    def channelwise(values: Array) -> Value:
        full = layout.values(values.astype(np.float32).reshape(1, -1, *[1] * (rank - 2)))
        first = next((i for i, d in enumerate(full.shape) if d != 1), len(full.shape) - 1)
        return op.graph.constant(full.reshape(full.shape[first:]))

    if not trains:
        factor = scale / np.sqrt(variance + epsilon)
        op.write(c.add(c.mul(x, channelwise(factor)), channelwise(bias - mean * factor)), layout)
        return
    axes = [layout.axis(a) for a in range(rank) if a != 1]
    y, batch_mean, inverse = _standardise(c, x, axes, epsilon)
    op.write(c.add(c.mul(y, channelwise(scale)), channelwise(bias)), layout)
    momentum, width = op.number("momentum", 0.9), op.shape(1)
    batch_variance = c.sub(c.div(1.0, c.mul(inverse, inverse)), epsilon)
    for index, old, new in ((1, mean, batch_mean), (2, variance, batch_variance)):
        if op.has_output(index):
            flat = c.mul(op.graph.reshape(new, width), 1 - momentum)
            op.write(c.add(flat, op.graph.constant((old * momentum).astype(np.float32))), None, index)


@converter("InstanceNormalization", layouts=ChannelsLast())
def instance_normalization(op: Op) -> None:
    """Mean and variance over the spatial axes."""
    layout, c = channels_last(len(op.shape())), op.calc
    x = op.read(0, layout)
    y, _, _ = _standardise(c, x, list(range(1, len(x.shape) - 1)), op.number("epsilon", 1e-5))
    op.write(c.add(c.mul(y, op.read(1)), op.read(2)), layout)


@converter("LayerNormalization", layouts=LayoutRule())
def layer_normalization(op: Op) -> None:
    """Mean and variance over the axes from the given one on."""
    rank, c = len(op.shape()), op.calc
    first = op.integer("axis", -1) % rank
    y, mean, inverse = _standardise(c, op.read(0), list(range(first, rank)), op.number("epsilon", 1e-5))
    y = c.mul(y, op.operand(1, plain(rank)))
    op.write(c.add(y, op.operand(2, plain(rank))) if op.has_input(2) else y)
    for index, value in ((1, mean), (2, inverse)):
        if op.has_output(index):
            op.write(value, None, index)


@converter("RMSNormalization", layouts=LayoutRule())
def rms_normalization(op: Op) -> None:
    """Division by the root mean square over the axes from the given one on."""
    rank, c, x = len(op.shape()), op.calc, op.read(0)
    axes = list(range(op.integer("axis", -1) % rank, rank))
    square = c.add(c.reduce("MEAN", c.mul(x, x), axes), op.number("epsilon", 1e-5))
    op.write(c.mul(c.mul(x, c.unary("RSQRT", square)), op.operand(1, plain(rank))))


@converter("GroupNormalization", layouts=ChannelsLast())
def group_normalization(op: Op) -> None:
    """Mean and variance over the spatial axes and the channels of a group."""
    layout, c = channels_last(len(op.shape())), op.calc
    x = op.read(0, layout)
    batch, channels, groups = x.shape[0], int(x.shape[-1]), op.integer("num_groups", 1)
    spatial = int(np.prod([int(d) for d in x.shape[1:-1]]))
    grouped = op.graph.reshape(x, (batch, spatial, groups, channels // groups))
    y, _, _ = _standardise(c, grouped, [1, 3], op.number("epsilon", 1e-5))
    y = op.graph.reshape(y, x.shape)

    def per_channel(values: Array) -> Array:
        return np.repeat(values, channels // len(values))

    scale, bias = (op.graph.constant(per_channel(op.required_weight(i, n))) for i, n in ((1, "scale"), (2, "bias")))
    op.write(c.add(c.mul(y, scale), bias), layout)


_Norm = Callable[[Calculator, Value, list[int]], Value]


@converter("LpNormalization", layouts=Follow())
def lp_normalization(op: Op) -> None:
    """Division by the sum of absolute values or by the root of the sum of squares; zeros stay zeros."""
    layout = plain(2) if op.planned_layout().block else op.planned_layout()
    c, x = op.calc, op.read(0, layout)
    axes = [layout.axis(op.integer("axis", -1))]
    norms: dict[int, _Norm] = {
        1: lambda c, x, axes: c.reduce("SUM", c.unary("ABS", x), axes),
        2: lambda c, x, axes: c.unary("SQRT", c.reduce("SUM", c.mul(x, x), axes)),
    }
    norm = norms[op.integer("p", 2)](c, x, axes)
    op.write(c.div(x, c.select(c.greater(norm, 0.0), norm, 1.0)), layout)


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
    layout = layout_with_last(op.planned_layout(), axis)
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
