"""Conv: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D; ConvTranspose: TRANSPOSE_CONV and its parts."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value, schema, type_of
from onnxfold.export.tflite.layout import ChannelsLast, Dynamic, channels_last
from onnxfold.export.tflite.windows import TFLiteWindow, as_image, from_image, image_window, pad, padding, window
from onnxfold.graph.tensors import Array


@converter("Conv", layouts=ChannelsLast())
def conv(op: Op) -> None:
    """Convolution in one, two or three dimensions; constant weights, any groups in two."""
    op.required_weight(1, "weight")
    filters, per_group, *size = op.shape(1)
    rank = len(size) + 2
    layout = channels_last(rank)
    group = op.integer("group", 1)
    win = window(op, size, op.shape()[2:], op.result()[2:])
    x = op.read(0, layout)
    bias = op.weight(2) if op.has_input(2) else op.graph.constant(np.zeros(filters, np.float32), "no_bias")
    if op.has_input(2):
        op.required_weight(2, "bias")
    if rank == 5:
        y = _conv_3d(op, x, win, bias, group)
    elif rank in (3, 4):
        y = _conv_2d(op, as_image(op, x), image_window(win), bias, group, per_group)
        y = from_image(op, y, rank)
    else:
        op.refuse(f"TFLite has no convolution in {rank - 2} dimensions")
    op.write(y, layout)


def _conv_2d(op: Op, x: Value, win: TFLiteWindow, bias: Value, group: int, per_group: int) -> Value:
    x, kind = padding(op, x, win)
    shape = (x.shape[0], *win.output, bias.shape[0])
    settings: dict[str, Any] = {
        "padding": kind,
        "strideH": win.stride[0],
        "strideW": win.stride[1],
        "dilationHFactor": win.dilation[0],
        "dilationWFactor": win.dilation[1],
    }
    if group > 1 and per_group == 1 and group == x.shape[-1]:
        weights = op.weight(1, lambda w: _image_weights(w).transpose(1, 2, 3, 0))
        multiplier = int(bias.shape[0]) // group
        return op.graph.op("DEPTHWISE_CONV_2D", [x, weights, bias], shape, depthMultiplier=multiplier, **settings)
    weights = op.weight(1, lambda w: _image_weights(w).transpose(0, 2, 3, 1))
    return op.graph.op("CONV_2D", [x, weights, bias], shape, version=1 if group == 1 else 6, **settings)


def _conv_3d(op: Op, x: Value, win: TFLiteWindow, bias: Value, group: int) -> Value:
    if group > 1:
        op.refuse("TFLite has no grouped convolution in three dimensions")
    x, kind = padding(op, x, win)
    weights = op.weight(1, lambda w: w.transpose(2, 3, 4, 1, 0))
    axes: dict[str, Any] = {f"stride{axis}": v for axis, v in zip("DHW", win.stride, strict=True)}
    axes |= {f"dilation{axis}Factor": v for axis, v in zip("DHW", win.dilation, strict=True)}
    return op.graph.op("CONV_3D", [x, weights, bias], (x.shape[0], *win.output, bias.shape[0]), padding=kind, **axes)


def _image_weights(weights: Array) -> Array:
    return weights[:, :, None] if weights.ndim == 3 else weights


@converter("ConvTranspose", layouts=ChannelsLast())
def conv_transpose(op: Op) -> None:
    """Transposed convolution in one or two dimensions; constant weights.

    Groups are taken apart by a SPLIT; a dilated kernel is written with the zeros between its taps. The result of a
    VALID transposed convolution is cropped where SAME does not say what ONNX's pads say.
    """
    inputs, _, *size = op.shape(1)
    rank = len(size) + 2
    if rank not in (3, 4):
        op.refuse(f"TFLite has no transposed convolution in {rank - 2} dimensions that the runtimes share")
    op.required_weight(1, "weight")
    layout, group, flat = channels_last(rank), op.integer("group", 1), [1] * (4 - rank)
    dilation = [*flat, *op.integers("dilations", [1] * len(size))]
    x = as_image(op, op.read(0, layout))
    spatial, output = [int(d) for d in x.shape[1:3]], [*flat, *(int(d) for d in op.result()[2:])]
    stride = op.integers("strides", [1] * len(size))
    window = _Window(
        [(k - 1) * d + 1 for k, d in zip([*flat, *size], dilation, strict=True)], [*flat, *stride],
        [0] * len(flat) + _begins(op, spatial[len(flat) :], size, stride, output[len(flat) :]), output,
    )  # fmt: skip

    def weights(group_index: int) -> Value:
        rows = slice(group_index * inputs // group, (group_index + 1) * inputs // group)
        return op.weight(1, lambda w: _spread_taps(w[rows], dilation).transpose(1, 2, 3, 0))

    bias = op.weight(2) if op.has_input(2) else None
    y = op.graph.concatenate(
        [_write_group(op, part, weights(i), window) for i, part in enumerate(op.graph.split(x, 3, group))], 3
    )
    if bias is not None:
        y = op.graph.op("ADD", [y, bias], y.shape)
    op.write(from_image(op, y, rank), layout)


@dataclass(frozen=True)
class _Window:
    """Sizes in both spatial dimensions."""

    kernel: list[int]
    stride: list[int]
    begins: list[int]  # what is cropped in front
    output: list[int]


def _begins(op: Op, spatial: list[int], size: list[int], stride: list[int], output: list[int]) -> list[int]:
    """Return the sizes cropped in front, for each spatial dimension."""
    rank = len(size)
    dilation = op.integers("dilations", [1] * rank)
    extra = op.integers("output_padding", [0] * rank)
    auto = op.text("auto_pad", "NOTSET")
    begins = op.integers("pads", [0] * 2 * rank)[:rank]
    if auto == "NOTSET" and not op.has_attribute("output_shape"):
        return begins
    crops = []
    for n, k, s, d, e, out in zip(spatial, size, stride, dilation, extra, output, strict=True):
        total = max(s * (n - 1) + e + (k - 1) * d + 1 - out, 0)
        crops.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return crops if auto != "VALID" else [0] * rank


def _write_group(op: Op, x: Value, weights: Value, window: _Window) -> Value:
    kernel, stride, begins, output = window.kernel, window.stride, window.begins, window.output
    kinds, spatial = schema().Padding, [int(d) for d in x.shape[1:3]]
    full = [s * (n - 1) + k for n, k, s in zip(spatial, kernel, stride, strict=True)]
    same = all(
        n == math.ceil(o / s) and f >= o and b == (f - o) // 2
        for n, s, f, o, b in zip(spatial, stride, full, output, begins, strict=True)
    )
    whole = full == output and not any(begins)
    shape = (x.shape[0], *(output if same else full), int(weights.shape[0]))
    y = op.graph.op(
        "TRANSPOSE_CONV", [_shape(op, x, shape), weights, x], shape, "FLOAT32",
        padding=int(kinds.SAME if same and not whole else kinds.VALID), strideH=stride[0], strideW=stride[1],
    )  # fmt: skip
    if same or whole:
        return y
    after = [b + o - f for b, o, f in zip(begins, output, full, strict=True)]
    if any(a > 0 for a in after) or any(b < 0 for b in begins):  # output_padding, or a crop below zero
        y = pad(op, y, ((0, 0), *((max(-b, 0), max(a, 0)) for b, a in zip(begins, after, strict=True)), (0, 0)), 0)
    start = [0, *(max(b, 0) for b in begins), 0]
    if any(start) or tuple(y.shape[1:3]) != tuple(output):
        bounds = [op.graph.indices(start), op.graph.indices([-1, *output, -1])]
        y = op.graph.op("SLICE", [y, *bounds], (x.shape[0], *output, shape[-1]))
    return y


def _shape(op: Op, x: Value, shape: tuple[int, ...]) -> Value:
    """Return the output shape for TRANSPOSE_CONV; a free batch is computed."""
    if not isinstance(x.shape[0], Dynamic):
        return op.graph.indices(shape)
    sizes = op.graph.op("SHAPE", [x], (4,), "INT32", outType=type_of("INT32"))
    first = op.graph.indices([0])
    batch = op.graph.op("SLICE", [sizes, first, op.graph.indices([1])], (1,))
    return op.graph.op("CONCATENATION", [batch, op.graph.indices(shape[1:])], (4,), axis=0)


def _spread_taps(weights: Array, dilation: list[int]) -> Array:
    """Return (C, M/group, kH, kW) with zeros between the taps."""
    weights = weights[:, :, None] if weights.ndim == 3 else weights
    if dilation == [1, 1]:
        return weights
    size = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilation, strict=True)]
    spread = np.zeros((*weights.shape[:2], *size), weights.dtype)
    spread[:, :, :: dilation[0], :: dilation[1]] = weights
    return spread
