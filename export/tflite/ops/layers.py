"""Conv and ConvTranspose, whose padding is SAME, VALID or a PAD before the operator; Gemm and MatMul."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import NUMPY_TYPES, Value
from onnxfold.export.tflite.layout import ChannelsLast, DenseProduct, Dynamic, Layout, Shape, plain
from onnxfold.graph.tensors import Array


@dataclass(frozen=True)
class AxisWindow:
    """A sliding window along one spatial axis."""

    size: int
    stride: int = 1
    dilation: int = 1
    #: What the input needs before and after it for exactly `output` positions; negative where it is not read to its
    #: end.
    pads: tuple[int, int] = (0, 0)
    output: int = 1

    @property
    def padded(self) -> tuple[int, int]:
        """The pads that a PAD in front of a VALID window has."""
        return max(self.pads[0], 0), max(self.pads[1], 0)

    def is_same(self, n: int) -> bool:
        """Whether output and pads are those that TFLite computes for SAME on `n` positions."""
        count = math.ceil(n / self.stride)
        total = max((count - 1) * self.stride + (self.size - 1) * self.dilation + 1 - n, 0)
        return self.output == count and self.padded == (total // 2, total - total // 2)


#: Of every spatial axis.
Window = tuple[AxisWindow, ...]


def window(op: Op, size: Sequence[int], spatial: Shape, output: Shape) -> Window:
    """Read a window from a node's attributes."""
    rank = len(size)
    stride, dilation = (op.integers(name, [1] * rank) for name in ("strides", "dilations"))
    begins = op.integers("pads", [0] * 2 * rank)[:rank]
    auto = op.text("auto_pad", "NOTSET")
    axes = []
    for n, k, s, d, begin, out in zip(spatial, size, stride, dilation, begins, output, strict=True):
        needed = (out - 1) * s + (k - 1) * d + 1 - n
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(needed, 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        elif auto == "VALID":
            begin = 0
        axes.append(AxisWindow(k, s, d, (begin, needed - begin), int(out)))
    return tuple(axes)


def padding_of(x: Value, win: Window) -> str:
    """Return TFLite's padding; '' where neither SAME nor VALID says it."""
    if not any(any(axis.padded) for axis in win):
        return "VALID"
    return "SAME" if all(axis.is_same(n) for axis, n in zip(win, x.shape[1:-1], strict=True)) else ""


def padding(op: Op, x: Value, win: Window, fill: float = 0.0) -> tuple[Value, str]:
    """Return the input, padded where neither SAME nor VALID says it, and TFLite's padding."""
    kind = padding_of(x, win)
    return (x, kind) if kind else (pad_window(op, x, win, fill), "VALID")


def pad_window(op: Op, x: Value, win: Window, fill: float = 0.0, mirror: str = "") -> Value:
    """Append a PAD with which the window is VALID."""
    return pad(op, x, ((0, 0), *(axis.padded for axis in win), (0, 0)), fill, mirror)


def pad(op: Op, x: Value, pads: Sequence[tuple[int, int]], fill: float = 0.0, mirror: str = "") -> Value:
    """Append a PAD, a PADV2 where the fill is not zero, or a MIRROR_PAD.

    SYMMETRIC mirrors repeat the values at the border, REFLECT does not.
    """
    shape = tuple(d if not a + b else int(d) + a + b for d, (a, b) in zip(x.shape, pads, strict=True))
    inputs = [x, op.graph.constant(np.array(pads, np.int32).reshape(len(pads), 2))]
    if mirror:
        return op.graph.op("MIRROR_PAD", inputs, shape, mode=mirror)
    if fill == 0:
        return op.graph.op("PAD", inputs, shape)
    # The quantiser gives a constant that shares the scale of an input one number per axis of the input.
    value = op.graph.constant(np.full((1,) * len(pads), fill, NUMPY_TYPES[x.element_type]))
    return op.graph.op("PADV2", [*inputs, value], shape)


def as_image(op: Op, x: Value) -> Value:
    """Return (N, L, C) as (N, 1, L, C)."""
    return op.graph.reshape(x, (x.shape[0], 1, *x.shape[1:])) if len(x.shape) == 3 else x


def from_image(op: Op, x: Value, rank: int) -> Value:
    """Undo :func:`as_image` for a result of an ONNX rank."""
    return op.graph.reshape(x, (x.shape[0], *x.shape[2:])) if rank == 3 else x


def image_window(win: Window) -> Window:
    """Return the window of :func:`as_image`'s result; the new axis has the stride of the old one."""
    return (AxisWindow(1, win[0].stride), *win) if len(win) == 1 else win


def result_shape(x: Value, win: Window, channels: int) -> Shape:
    """Return the shape of what a window gives that slides over an input."""
    return (x.shape[0], *(axis.output for axis in win), channels)


@converter("Conv", layouts=ChannelsLast())
def conv(op: Op) -> Value:
    """Convolution in one, two or three dimensions; constant weights, any groups in two."""
    op.required_weight(1, "weight")
    filters, per_group, *size = op.shape(1)
    rank, group = len(size) + 2, op.integer("group", 1)
    if rank == 5 and group > 1:
        op.refuse("TFLite has no grouped convolution in three dimensions")
    if rank not in (3, 4, 5):
        op.refuse(f"TFLite has no convolution in {rank - 2} dimensions")
    win = image_window(window(op, size, op.shape()[2:], op.result()[2:]))
    x = as_image(op, op.read(0))
    if op.has_input(2):
        op.required_weight(2, "bias")
        bias = op.weight(2)
    else:
        bias = op.graph.constant(np.zeros(filters, np.float32), "no_bias")
    if rank == 5:
        y = convolve(op, "CONV_3D", [x, op.weight(1, lambda w: w.transpose(2, 3, 4, 1, 0)), bias], win)
    elif group > 1 and per_group == 1 and group == x.shape[-1]:
        weights = op.weight(1, lambda w: _image_weights(w).transpose(1, 2, 3, 0))
        y = convolve(op, "DEPTHWISE_CONV_2D", [x, weights, bias], win, depthMultiplier=filters // group)
    else:
        weights = op.weight(1, lambda w: _image_weights(w).transpose(0, 2, 3, 1))
        y = convolve(op, "CONV_2D", [x, weights, bias], win, version=1 if group == 1 else 6)
    return from_image(op, y, rank)


def convolve(op: Op, code: str, inputs: Sequence[Value], win: Window, **options: Any) -> Value:
    """Append a convolution of an input, weights and a bias."""
    x, kind = padding(op, inputs[0], win)
    for letter, axis in zip("DHW"[-len(win) :], win, strict=True):
        options |= {f"stride{letter}": axis.stride, f"dilation{letter}Factor": axis.dilation}
    return op.graph.op(code, [x, *inputs[1:]], result_shape(x, win, inputs[2].shape[0]), padding=kind, **options)


@converter("ConvTranspose", layouts=ChannelsLast())
def conv_transpose(op: Op) -> Value:
    """Transposed convolution in one or two dimensions; constant weights.

    Groups are taken apart by a SPLIT; a dilated kernel is written with the zeros between its taps. The result of a
    VALID transposed convolution is cropped where SAME does not say what ONNX's pads say.
    """
    inputs, _, *size = op.shape(1)
    rank = len(size) + 2
    if rank not in (3, 4):
        op.refuse(f"TFLite has no transposed convolution in {rank - 2} dimensions that the runtimes share")
    op.required_weight(1, "weight")
    group, flat = op.integer("group", 1), [1] * (4 - rank)
    dilation = [*flat, *op.integers("dilations", [1] * len(size))]
    x = as_image(op, op.read(0))
    output = [*flat, *(int(d) for d in op.result()[2:])]
    crops = [(0, 0)] * len(flat) + _crops(op, op.shape()[2:], size, op.result()[2:])

    def weights(group_index: int) -> Value:
        rows = slice(group_index * inputs // group, (group_index + 1) * inputs // group)
        return op.weight(1, lambda w: _image_weights(w[rows], dilation).transpose(1, 2, 3, 0))

    y = op.graph.concatenate(
        [_write_group(op, part, weights(i), crops, output) for i, part in enumerate(op.graph.split(x, 3, group))], 3
    )
    if op.has_input(2):
        op.required_weight(2, "bias")
        y = op.graph.op("ADD", [y, op.weight(2)], y.shape)
    return from_image(op, y, rank)


def _crops(op: Op, spatial: Shape, size: list[int], output: Shape) -> list[tuple[int, int]]:
    """Return the crop in front and behind, for each spatial dimension; negative where it is padded."""
    rank, auto = len(size), op.text("auto_pad", "NOTSET")
    stride, dilation = (op.integers(name, [1] * rank) for name in ("strides", "dilations"))
    extra, begins = (op.integers(name, [0] * 2 * rank)[:rank] for name in ("output_padding", "pads"))
    crops = []
    for n, k, s, d, e, begin, out in zip(spatial, size, stride, dilation, extra, begins, output, strict=True):
        over = s * (int(n) - 1) + (k - 1) * d + 1 - int(out)
        if auto == "VALID":
            begin = 0
        elif auto != "NOTSET" or op.has_attribute("output_shape"):
            total = max(over + e, 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        crops.append((begin, over - begin))
    return crops


def _write_group(op: Op, x: Value, weights: Value, crops: list[tuple[int, int]], output: list[int]) -> Value:
    stride = [1, *op.integers("strides", [1, 1])][-2:]
    full = [o + a + b for o, (a, b) in zip(output, crops, strict=True)]
    same = all(
        n == math.ceil(o / s) and f >= o and a == (f - o) // 2
        for n, s, f, o, (a, _) in zip(x.shape[1:3], stride, full, output, crops, strict=True)
    )
    whole = not any(map(any, crops))
    shape = (x.shape[0], *(output if same else full), int(weights.shape[0]))
    y = op.graph.op(
        "TRANSPOSE_CONV", [_shape(op, x, shape), weights, x], shape, "FLOAT32",
        padding="SAME" if same and not whole else "VALID", strideH=stride[0], strideW=stride[1],
    )  # fmt: skip
    if same or whole:
        return y
    pads = [(max(-a, 0), max(-b, 0)) for a, b in crops]
    if any(map(any, pads)):  # output_padding, or a crop below zero
        y = pad(op, y, ((0, 0), *pads, (0, 0)))
    start = [0, *(max(a, 0) for a, _ in crops), 0]
    if any(start) or y.shape[1:3] != tuple(output):
        bounds = [op.graph.indices(start), op.graph.indices([-1, *output, -1])]
        y = op.graph.op("SLICE", [y, *bounds], (x.shape[0], *output, shape[-1]))
    return y


def _shape(op: Op, x: Value, shape: tuple[int, ...]) -> Value:
    """Return the output shape for TRANSPOSE_CONV; a free batch is computed."""
    if not isinstance(x.shape[0], Dynamic):
        return op.graph.indices(shape)
    sizes = op.graph.op("SHAPE", [x], (4,), "INT32", outType="INT32")
    batch = op.graph.op("SLICE", [sizes, op.graph.indices([0]), op.graph.indices([1])], (1,))
    return op.graph.concatenate([batch, op.graph.indices(shape[1:])], 0)


def _image_weights(weights: Array, dilation: Sequence[int] = (1, 1)) -> Array:
    """Return weights with two spatial axes, (..., kH, kW), and zeros between the taps of dilated ones."""
    weights = weights[:, :, None] if weights.ndim == 3 else weights
    if max(dilation) == 1:
        return weights
    size = [(k - 1) * d + 1 for k, d in zip(weights.shape[2:], dilation, strict=True)]
    spread = np.zeros((*weights.shape[:2], *size), weights.dtype)
    spread[:, :, :: dilation[0], :: dilation[1]] = weights
    return spread


@converter("Gemm", layouts=DenseProduct())
def gemm(op: Op) -> None:
    """Alpha A B + beta C; a flattened feature map as A permutes the columns of constant weights."""
    alpha, beta = op.number("alpha", 1.0), op.number("beta", 1.0)
    turned_a, turned_b = bool(op.integer("transA", 0)), bool(op.integer("transB", 0))
    result = op.result()
    if op.is_constant(1):
        layout = op.assigned_layout() if not turned_a else plain(2)
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
    y = _times(op, y, alpha)
    if op.has_input(2):
        y = op.graph.op("ADD", [y, _times(op, op.operand(2), beta)], result)
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
    return zero, _times(op, op.operand(2, out), beta)


def _times(op: Op, x: Value, factor: float) -> Value:
    return x if factor == 1.0 else op.graph.op("MUL", [x, op.graph.constant(np.array([factor], np.float32))], x.shape)


@converter("MatMul", layouts=DenseProduct())
def matmul(op: Op) -> None:
    """A matrix product as numpy's; constant matrices become weights."""
    a, b, result = op.shape(0), op.shape(1), op.result()
    if op.is_constant(1) and len(b) <= 2 and len(a) > 1:
        layout = op.assigned_layout() if op.assigned_layout().block else plain(len(a))
        x = op.read(0, layout)
        out = op.planned_layout() if op.planned_layout().block and len(b) == 2 else plain(len(result))
        kernel = op.weight(1, lambda w: _reorder(w.reshape(w.shape[0], -1).T, layout, out))
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
