"""Pools: MAX_POOL_2D and AVERAGE_POOL_2D, one pair of dimensions at a time; global pools as reductions."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value, schema
from onnxfold.export.tflite.layout import ChannelsLast, channels_last
from onnxfold.export.tflite.ops import layers
from onnxfold.graph.tensors import Array

#: What pads maxima where nothing else does; in int8 it takes a step of its own.
_LOWEST = float(np.finfo(np.float32).min)
_MOST_MIRRORED = 4

#: Pools of images, (N, H, W, C), by a window.
Pool = Callable[[Value, layers.TFLiteWindow], Value]


@converter("GlobalAveragePool", "GlobalMaxPool", layouts=ChannelsLast())
def global_pool(op: Op) -> None:
    """MEAN or REDUCE_MAX over the spatial axes."""
    layout = channels_last(len(op.shape()))
    code = "MEAN" if op.op_type == "GlobalAveragePool" else "REDUCE_MAX"
    x = op.read(0, layout)
    op.write(op.graph.reduce(code, x, list(range(1, len(x.shape) - 1))), layout)


@converter("MaxPool", layouts=ChannelsLast())
def max_pool(op: Op) -> None:
    """MAX_POOL_2D; a dilated one as the maximum of slices; in three dimensions one after the other."""
    if op.has_output(1):
        op.refuse("TFLite's pools do not return indices")
    layout = channels_last(len(op.shape()))
    win = layers.window(op, op.integers("kernel_shape"), op.shape()[2:], op.result()[2:])
    x = op.graph.cast(op.read(0, layout), "FLOAT32")
    if op.element_type() not in ("FLOAT32", "INT8", "UINT8"):
        op.refuse(f"TFLite has no maximum pool of {op.element_type()}")
    if any(d > 1 for d in win.dilation):
        y = _max_of_slices(op, x, win)
    elif len(win.size) == 3:
        y = _in_three_dimensions(op, x, win, partial(_pool, op, "MAX_POOL_2D", fill=_LOWEST))
    else:
        y = layers.from_image(
            op, _pool(op, "MAX_POOL_2D", layers.as_image(op, x), layers.image_window(win), _LOWEST), len(op.shape())
        )
    op.write(op.graph.cast(y, op.result_type()), layout)


def _pool(op: Op, code: str, x: Value, win: layers.TFLiteWindow, fill: float) -> Value:
    if fill == _LOWEST and not win.is_valid() and not win.is_same(x.shape[1:-1]) and _may_mirror(x, win):
        x, kind = layers.mirror(op, x, ((0, 0), *win.padded(), (0, 0)), "SYMMETRIC"), int(schema().Padding.VALID)
    else:
        x, kind = layers.padding(op, x, win, fill)
    return op.graph.op(
        code, [x], (x.shape[0], *win.output, x.shape[-1]), padding=kind, strideH=win.stride[0], strideW=win.stride[1],
        filterHeight=win.size[0], filterWidth=win.size[1],
    )  # fmt: skip


def _may_mirror(x: Value, win: layers.TFLiteWindow) -> bool:
    """Whether every window that reads mirrored values reads what they mirror, too, so that maxima do not change."""
    return len(x.shape) <= _MOST_MIRRORED and all(
        2 * max(pads) <= size and max(pads) <= int(n)
        for n, size, pads in zip(x.shape[1:-1], win.size, win.padded(), strict=True)
    )


def _in_three_dimensions(op: Op, x: Value, win: layers.TFLiteWindow, pool: Pool) -> Value:
    """Pool (H, W), then D: a maximum over a box is one of maxima, and a mean one of means."""
    n, d, h, w, c = x.shape
    flat = layers.TFLiteWindow(win.size[1:], win.stride[1:], win.dilation[1:], win.pads[1:], win.output[1:])
    deep = layers.TFLiteWindow(
        (win.size[0], 1), (win.stride[0], 1), (win.dilation[0], 1), (win.pads[0], (0, 0)),
        (win.output[0], math.prod(flat.output)),
    )  # fmt: skip
    y = pool(op.graph.reshape(x, (type(n)(int(n) * int(d)), h, w, c)), flat)
    y = pool(op.graph.reshape(y, (n, d, math.prod(flat.output), c)), deep)
    return op.graph.reshape(y, (n, *win.output, c))


def _max_of_slices(op: Op, x: Value, win: layers.TFLiteWindow) -> Value:
    """Return the maximum over the taps of a dilated window, each a strided slice of the padded input."""
    if not win.is_valid():
        x = layers.pad(op, x, ((0, 0), *win.padded(), (0, 0)), _LOWEST)
    begins = (
        [t * d for t, d in zip(tap, win.dilation, strict=True)] for tap in itertools.product(*map(range, win.size))
    )
    return reduce(partial(op.graph.binary, "MAXIMUM"), (_slice(op, x, begin, win) for begin in begins))


def _slice(op: Op, x: Value, begin: list[int], win: layers.TFLiteWindow) -> Value:
    end = [b + (o - 1) * s + 1 for b, o, s in zip(begin, win.output, win.stride, strict=True)]
    whole = 1 | 1 << (len(x.shape) - 1)
    places = map(op.graph.indices, ([0, *begin, 0], [0, *end, 0], [1, *win.stride, 1]))
    shape = (x.shape[0], *win.output, x.shape[-1])
    return op.graph.op("STRIDED_SLICE", [x, *places], shape, beginMask=whole, endMask=whole)


@converter("AveragePool", layouts=ChannelsLast())
def average_pool(op: Op) -> None:
    """AVERAGE_POOL_2D, whose SAME does not count what is padded; else a PAD, and a correction where counts differ.

    A dilated pool is a depthwise convolution with constant weights.
    """
    rank = len(op.shape())
    layout = channels_last(rank)
    win = layers.window(op, op.integers("kernel_shape"), op.shape()[2:], op.result()[2:])
    x = op.read(0, layout)
    counts = _counts(op, win)
    counts = counts[None] if rank == 3 else counts
    y = _average(op, layers.as_image(op, x), layers.image_window(win), counts)
    op.write(layers.from_image(op, y, rank), layout)


def _counts(op: Op, win: layers.TFLiteWindow) -> Array:
    """Return, per output position, the number of positions that ONNX divides by."""
    include = bool(op.integer("count_include_pad", 0))
    explicit = op.integers("pads", [0] * 2 * len(win.size))
    limits = []
    for i, (n, (begin, end)) in enumerate(zip(op.shape()[2:], win.pads, strict=True)):
        # With ceil_mode the last window may leave even the padded input; what lies outside is never counted.
        outer = explicit[len(win.size) + i] if op.text("auto_pad", "NOTSET") == "NOTSET" else max(end, 0)
        limits.append((-begin, int(n) + outer) if include else (0, int(n)))
    return _taps_within(win, limits)


def _taps_within(win: layers.TFLiteWindow, limits: Sequence[tuple[int, int]]) -> Array:
    """Return how many taps of every window lie between limits of the axes."""
    per_axis = []
    for k, s, d, (begin, _), out, (low, high) in zip(
        win.size, win.stride, win.dilation, win.pads, win.output, limits, strict=True
    ):
        taps = np.arange(out)[:, None] * s - begin + np.arange(k)[None] * d
        per_axis.append(((taps >= low) & (taps < high)).sum(axis=1))
    counts: Array = reduce(np.multiply.outer, per_axis).astype(np.float64)
    return counts


def _average(op: Op, x: Value, win: layers.TFLiteWindow, counts: Array) -> Value:
    kernel = math.prod(win.size)
    valid_counts = _taps_within(win, [(0, int(n)) for n in x.shape[1:-1]])  # what SAME divides by
    is_dilated = any(d > 1 for d in win.dilation)
    mean: Pool = partial(_depthwise_mean, op) if is_dilated else partial(_pool, op, "AVERAGE_POOL_2D", fill=0.0)
    if len(win.size) == 3:
        mean = partial(_in_three_dimensions, op, pool=mean)
    if is_dilated:
        y = mean(x, win)
    elif win.is_valid() or (win.is_same(x.shape[1:-1]) and np.array_equal(counts, valid_counts)):
        return mean(x, win)
    else:
        x = layers.pad(op, x, ((0, 0), *win.padded(), (0, 0)), 0.0)
        y = mean(x, replace(win, pads=((0, 0),) * len(win.size)))
    if np.all(counts == kernel):
        return y
    return op.graph.mul(y, op.graph.constant((kernel / counts)[..., None].astype(np.float32)))


def _depthwise_mean(op: Op, x: Value, win: layers.TFLiteWindow) -> Value:
    x, kind = layers.padding(op, x, win)
    channels = int(x.shape[-1])
    weights = op.graph.constant(np.full((1, *win.size, channels), 1 / math.prod(win.size), np.float32), "mean_weights")
    bias = op.graph.constant(np.zeros(channels, np.float32), "no_bias")
    return op.graph.op(
        "DEPTHWISE_CONV_2D", [x, weights, bias], (x.shape[0], *win.output, channels), padding=kind, depthMultiplier=1,
        strideH=win.stride[0], strideW=win.stride[1], dilationHFactor=win.dilation[0], dilationWFactor=win.dilation[1],
    )  # fmt: skip
