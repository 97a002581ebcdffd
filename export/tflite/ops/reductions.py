"""Normalisations by their definitions, reductions along axes, and the positions of extremes."""

import math
from collections.abc import Callable

import numpy as np

from onnxfold.export.tflite import layout as layouts
from onnxfold.export.tflite.context import Calculator, Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.graph.tensors import Array


def _standardise(c: Calculator, x: Value, axes: list[int], epsilon: float) -> tuple[Value, Value, Value]:
    """Return (x - mean) / sqrt(var + epsilon), the mean, and 1 / sqrt(var + epsilon)."""
    mean = c.reduce("MEAN", x, axes)
    centred = c.sub(x, mean)
    inverse = c.unary("RSQRT", c.add(c.reduce("MEAN", c.mul(centred, centred), axes), epsilon))
    return c.mul(centred, inverse), mean, inverse


@converter("BatchNormalization", layouts=layouts.ELEMENTWISE)
def batch_normalization(op: Op) -> None:
    """A MUL and an ADD per channel; in training mode with the statistics of the batch."""
    trains = bool(op.integer("training_mode", 0))
    layout = op.layout.unflattened if trains else op.layout
    rank, epsilon = len(op.shape()), op.number("epsilon", 1e-5)
    c, x = op.graph, op.read(0, layout)
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
            op.write(c.add(flat, op.graph.constant((old * momentum).astype(np.float32))), index=index)


@converter("InstanceNormalization", layouts=layouts.ChannelsLast())
def instance_normalization(op: Op) -> Value:
    """Mean and variance over the spatial axes."""
    c, x = op.graph, op.read(0)
    y, _, _ = _standardise(c, x, list(range(1, len(x.shape) - 1)), op.number("epsilon", 1e-5))
    return c.add(c.mul(y, op.read(1)), op.read(2))


@converter("LayerNormalization", layouts=layouts.LayoutRule())
def layer_normalization(op: Op) -> None:
    """Mean and variance over the axes from the given one on."""
    rank, c = len(op.shape()), op.graph
    first = op.integer("axis", -1) % rank
    y, mean, inverse = _standardise(c, op.read(0), list(range(first, rank)), op.number("epsilon", 1e-5))
    y = c.mul(y, op.operand(1))
    op.write(c.add(y, op.operand(2)) if op.has_input(2) else y)
    op.write(mean, index=1)
    op.write(inverse, index=2)


@converter("RMSNormalization", layouts=layouts.LayoutRule())
def rms_normalization(op: Op) -> Value:
    """Division by the root mean square over the axes from the given one on."""
    rank, c, x = len(op.shape()), op.graph, op.read(0)
    axes = list(range(op.integer("axis", -1) % rank, rank))
    square = c.add(c.reduce("MEAN", c.mul(x, x), axes), op.number("epsilon", 1e-5))
    return c.mul(c.mul(x, c.unary("RSQRT", square)), op.operand(1))


@converter("GroupNormalization", layouts=layouts.ChannelsLast())
def group_normalization(op: Op) -> Value:
    """Mean and variance over the spatial axes and the channels of a group."""
    c, x = op.graph, op.read(0)
    batch, channels, groups = x.shape[0], int(x.shape[-1]), op.integer("num_groups", 1)
    spatial = int(np.prod([int(d) for d in x.shape[1:-1]]))
    grouped = op.graph.reshape(x, (batch, spatial, groups, channels // groups))
    y, _, _ = _standardise(c, grouped, [1, 3], op.number("epsilon", 1e-5))
    y = op.graph.reshape(y, x.shape)

    scale, bias = (op.required_weight(i, n) for i, n in ((1, "scale"), (2, "bias")))
    y = c.mul(y, op.graph.constant(np.repeat(scale, channels // len(scale))))
    return c.add(y, op.graph.constant(np.repeat(bias, channels // len(bias))))


@converter("LpNormalization", layouts=layouts.Follow())
def lp_normalization(op: Op) -> Value:
    """Division by the sum of absolute values or by the root of the sum of squares; zeros stay zeros."""
    c, x, axes = op.graph, op.read(0), [op.layout.axis(op.integer("axis", -1))]
    if op.integer("p", 2) == 1:
        norm = c.reduce("SUM", c.unary("ABS", x), axes)
    else:
        norm = c.unary("SQRT", c.reduce("SUM", c.mul(x, x), axes))
    return c.div(x, c.select(c.greater(norm, 0.0), norm, 1.0))


def _apply(op: Op, x: Value) -> Value:
    if op.op_type == "LogSoftmax":
        return op.graph.unary("LOG_SOFTMAX", x)
    return op.graph.unary("SOFTMAX", x, beta=1.0)


@converter("Softmax", "LogSoftmax", since=13, layouts=layouts.LastAxis())
def softmax(op: Op) -> Value:
    """SOFTMAX, LOG_SOFTMAX along the last axis of a layout; between TRANSPOSEs where no layout has the axis there."""
    rank, place = len(op.shape()), op.layout.axis(op.integer("axis", -1))
    perm = [*(i for i in range(rank) if i != place), place]
    y = _apply(op, op.graph.transpose(op.read(0), perm))
    return op.graph.transpose(y, [perm.index(i) for i in range(rank)])


@converter("Softmax", "LogSoftmax", since=1, layouts=layouts.LayoutRule())
def softmax_of_matrix(op: Op) -> Value:
    """Before operator set 13: over all axes from the given one on, taken as one."""
    shape = op.shape()
    axis = op.integer("axis", 1) % len(shape)
    op.require_fixed(shape[axis:], "normalises over")
    merged = (*shape[:axis], math.prod(int(d) for d in shape[axis:]))
    return op.graph.reshape(_apply(op, op.graph.reshape(op.read(0), merged)), shape)


def _declared_axes(op: layouts.NodeShapes) -> tuple[int, ...]:
    """Return the axes that go, for the planner."""
    rank = op.rank(op.reads[0])
    axes = op.constant(1) if len(op.inputs) > 1 else np.array(op.integers("axes"))
    return tuple(range(rank)) if axes is None or not axes.size else tuple(int(a) for a in axes.reshape(-1))


def _log_sum_exp(c: Calculator, x: Value, axes: list[int], keep: bool) -> Value:
    """Return log sum exp, with the maximum taken out so that nothing overflows."""
    shifted = c.sub(x, c.reduce("REDUCE_MAX", x, axes, True))
    total = c.unary("LOG", c.reduce("SUM", c.unary("EXP", shifted), axes, keep))
    return c.add(total, c.reduce("REDUCE_MAX", x, axes, keep))


Reduce = Callable[[Calculator, Value, list[int], bool], Value]

#: Reductions that TFLite has, for numbers and for truth values.
_SAME = {
    "ReduceMean": ("MEAN", "MEAN"), "ReduceSum": ("SUM", "SUM"), "ReduceMax": ("REDUCE_MAX", "REDUCE_ANY"),
    "ReduceMin": ("REDUCE_MIN", "REDUCE_ALL"), "ReduceProd": ("REDUCE_PROD", "REDUCE_PROD"),
}  # fmt: skip
_AROUND_SUMS: dict[str, Reduce] = {
    "ReduceL1": lambda c, x, axes, keep: c.reduce("SUM", c.unary("ABS", x), axes, keep),
    "ReduceL2": lambda c, x, axes, keep: c.unary("SQRT", c.reduce("SUM", c.mul(x, x), axes, keep)),
    "ReduceSumSquare": lambda c, x, axes, keep: c.reduce("SUM", c.mul(x, x), axes, keep),
    "ReduceLogSum": lambda c, x, axes, keep: c.unary("LOG", c.reduce("SUM", x, axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
}


@converter(*_SAME, *_AROUND_SUMS, layouts=layouts.Reducing(_declared_axes))
def reduction(op: Op) -> None:
    """The reduction of the same meaning, or the arithmetic around a SUM; axes must be constant."""
    rank = len(op.shape())
    axes = op.numbers(1, "axes", "axes")
    layout = op.assigned_layout().unflattened
    x = op.read(0, layout)
    if not axes and op.integer("noop_with_empty_axes", 0):
        op.write(x, layout)
        return
    axes = axes or list(range(rank))
    keep = bool(op.integer("keepdims", 1))
    places = [layout.axis(a) for a in axes]
    if op.op_type in _SAME:
        y = op.graph.reduce(_SAME[op.op_type][x.element_type == "BOOL"], x, places, keep)
    else:
        y = _AROUND_SUMS[op.op_type](op.graph, x, places, keep)
    op.write(y, layout if keep else layouts.remaining_layout(layout, axes))


@converter("ArgMax", "ArgMin", layouts=layouts.Reducing(lambda op: (op.integer("axis", 0),)))
def arg_extreme(op: Op) -> None:
    """ARG_MAX, ARG_MIN; of several equal extremes the last one is the first one of the reversed axis."""
    code = "ARG_MAX" if op.op_type == "ArgMax" else "ARG_MIN"
    layout = op.assigned_layout().unflattened
    x = op.read(0, layout)
    onnx_axis = op.integer("axis", 0)
    axis = layout.axis(onnx_axis)
    last = bool(op.integer("select_last_index", 0))
    if last:
        x = op.graph.op("REVERSE_V2", [x, op.graph.indices([axis])], x.shape)
    rest = tuple(d for i, d in enumerate(x.shape) if i != axis)
    y = op.graph.op(code, [x, op.graph.constant(np.array(axis, np.int32))], rest, "INT64", outputType="INT64")
    if last:
        y = op.graph.sub(int(x.shape[axis]) - 1, y)
    if op.integer("keepdims", 1):
        op.write(op.graph.reshape(y, tuple(1 if i == axis else d for i, d in enumerate(x.shape))), layout)
    else:
        op.write(y, layouts.remaining_layout(layout, [onnx_axis]))
