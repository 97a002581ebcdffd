"""Pools: MAX_POOL_2D and AVERAGE_POOL_2D, one pair of dimensions at a time; global pools as reductions."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import ChannelsLast
from onnxfold.export.tflite.ops import layers
from onnxfold.graph.tensors import Array

#: What pads maxima where nothing else does; in int8 it takes a step of its own.
_LOWEST = float(np.finfo(np.float32).min)

#: Pools of images, (N, H, W, C), by a window.
Pool = Callable[[Value, layers.Window], Value]


@converter("GlobalAveragePool", "GlobalMaxPool", layouts=ChannelsLast())
def global_pool(op: Op) -> Value:
    """MEAN or REDUCE_MAX over the spatial axes."""
    code, x = "MEAN" if op.op_type == "GlobalAveragePool" else "REDUCE_MAX", op.read(0)
    return op.graph.reduce(code, x, list(range(1, len(x.shape) - 1)))


@converter("MaxPool", layouts=ChannelsLast())
def max_pool(op: Op) -> Value:
    """MAX_POOL_2D; a dilated one as the maximum of slices; in three dimensions one after the other."""
    if op.has_output(1):
        op.refuse("TFLite's pools do not return indices")
    win = layers.window(op, op.integers("kernel_shape"), op.shape()[2:], op.result()[2:])
    x = op.graph.cast(op.read(0), "FLOAT32")
    if op.element_type() not in ("FLOAT32", "INT8", "UINT8"):
        op.refuse(f"TFLite has no maximum pool of {op.element_type()}")
    pool = partial(_pool, op, "MAX_POOL_2D", fill=_LOWEST)
    if any(axis.dilation > 1 for axis in win):
        y = _max_of_slices(op, x, win)
    elif len(win) == 3:
        y = _in_three_dimensions(op, x, win, pool)
    else:
        y = layers.from_image(op, pool(layers.as_image(op, x), layers.image_window(win)), len(op.shape()))
    return op.graph.cast(y, op.result_type())


def _pool(op: Op, code: str, x: Value, win: layers.Window, fill: float) -> Value:
    if fill == _LOWEST and not layers.padding_of(x, win) and _may_mirror(x, win):
        x, kind = layers.pad_window(op, x, win, mirror="SYMMETRIC"), "VALID"
    else:
        x, kind = layers.padding(op, x, win, fill)
    h, w = win
    return op.graph.op(
        code, [x], layers.result_shape(x, win, x.shape[-1]), padding=kind, strideH=h.stride, strideW=w.stride,
        filterHeight=h.size, filterWidth=w.size,
    )  # fmt: skip


def _may_mirror(x: Value, win: layers.Window) -> bool:
    """Whether every window that reads mirrored values reads what they mirror, too, so that maxima do not change."""
    sides = ((max(axis.padded), axis.size, n) for n, axis in zip(x.shape[1:-1], win, strict=True))
    return all(2 * pad <= size and pad <= n for pad, size, n in sides)


def _in_three_dimensions(op: Op, x: Value, win: layers.Window, pool: Pool) -> Value:
    """Pool (H, W), then D: a maximum over a box is one of maxima, and a mean one of means."""
    n, d, h, w, c = x.shape
    deep, *flat = win
    area = math.prod(axis.output for axis in flat)
    y = pool(op.graph.reshape(x, (type(n)(int(n) * int(d)), h, w, c)), tuple(flat))
    y = pool(op.graph.reshape(y, (n, d, area, c)), (deep, layers.AxisWindow(1, output=area)))
    return op.graph.reshape(y, layers.result_shape(x, win, c))


def _max_of_slices(op: Op, x: Value, win: layers.Window) -> Value:
    """Return the maximum over the taps of a dilated window, each a strided slice of the padded input."""
    if any(any(axis.padded) for axis in win):
        x = layers.pad_window(op, x, win, _LOWEST)
    taps = itertools.product(*(range(0, axis.size * axis.dilation, axis.dilation) for axis in win))
    return reduce(partial(op.graph.binary, "MAXIMUM"), (_slice(op, x, begin, win) for begin in taps))


def _slice(op: Op, x: Value, begin: Sequence[int], win: layers.Window) -> Value:
    end = [b + (axis.output - 1) * axis.stride + 1 for b, axis in zip(begin, win, strict=True)]
    whole = 1 | 1 << (len(x.shape) - 1)
    places = map(op.graph.indices, ([0, *begin, 0], [0, *end, 0], [1, *(axis.stride for axis in win), 1]))
    shape = layers.result_shape(x, win, x.shape[-1])
    return op.graph.op("STRIDED_SLICE", [x, *places], shape, beginMask=whole, endMask=whole)


@converter("AveragePool", layouts=ChannelsLast())
def average_pool(op: Op) -> Value:
    """AVERAGE_POOL_2D, whose SAME does not count what is padded; else a PAD, and a correction where counts differ.

    A dilated pool is a depthwise convolution with constant weights.
    """
    rank = len(op.shape())
    win = layers.window(op, op.integers("kernel_shape"), op.shape()[2:], op.result()[2:])
    x = op.read(0)
    counts = _counts(op, win)
    counts = counts[None] if rank == 3 else counts
    y = _average(op, layers.as_image(op, x), layers.image_window(win), counts)
    return layers.from_image(op, y, rank)


def _counts(op: Op, win: layers.Window) -> Array:
    """Return, per output position, the number of positions that ONNX divides by."""
    include = bool(op.integer("count_include_pad", 0))
    explicit = op.integers("pads", [0] * 2 * len(win))[len(win) :]
    limits = []
    for n, axis, end in zip(op.shape()[2:], win, explicit, strict=True):
        # With ceil_mode the last window may leave even the padded input; what lies outside is never counted.
        outer = end if op.text("auto_pad", "NOTSET") == "NOTSET" else axis.padded[1]
        limits.append((-axis.pads[0], int(n) + outer) if include else (0, int(n)))
    return _taps_within(win, limits)


def _taps_within(win: layers.Window, limits: Sequence[tuple[int, int]]) -> Array:
    """Return how many taps of every window lie between limits of the axes."""
    per_axis = []
    for axis, (low, high) in zip(win, limits, strict=True):
        starts = np.arange(axis.output) * axis.stride - axis.pads[0]
        taps = starts[:, None] + np.arange(axis.size) * axis.dilation
        per_axis.append(((taps >= low) & (taps < high)).sum(axis=1))
    counts: Array = reduce(np.multiply.outer, per_axis).astype(np.float64)
    return counts


def _average(op: Op, x: Value, win: layers.Window, counts: Array) -> Value:
    kernel = math.prod(axis.size for axis in win)
    valid_counts = _taps_within(win, [(0, int(n)) for n in x.shape[1:-1]])  # what SAME divides by
    is_dilated = any(axis.dilation > 1 for axis in win)
    mean: Pool = partial(_depthwise_mean, op) if is_dilated else partial(_pool, op, "AVERAGE_POOL_2D", fill=0.0)
    if len(win) == 3:
        mean = partial(_in_three_dimensions, op, pool=mean)
    kind = layers.padding_of(x, win)
    if is_dilated:
        y = mean(x, win)
    elif kind == "VALID" or (kind == "SAME" and np.array_equal(counts, valid_counts)):
        return mean(x, win)
    else:
        y = mean(layers.pad_window(op, x, win), tuple(replace(axis, pads=(0, 0)) for axis in win))
    if np.all(counts == kernel):
        return y
    return op.graph.mul(y, op.graph.constant((kernel / counts)[..., None].astype(np.float32)))


def _depthwise_mean(op: Op, x: Value, win: layers.Window) -> Value:
    size, channels = [axis.size for axis in win], int(x.shape[-1])
    weights = op.graph.constant(np.full((1, *size, channels), 1 / math.prod(size), np.float32), "mean_weights")
    bias = op.graph.constant(np.zeros(channels, np.float32), "no_bias")
    return layers.convolve(op, "DEPTHWISE_CONV_2D", [x, weights, bias], win, depthMultiplier=1)
