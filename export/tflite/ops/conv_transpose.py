"""ConvTranspose: TRANSPOSE_CONV."""

import math
from typing import Any

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import Dynamic, channels_last
from onnxfold.export.tflite.layout_rules import ChannelsLast
from onnxfold.export.tflite.registry import converter
from onnxfold.export.tflite.schema import schema, type_of
from onnxfold.export.tflite.windows import as_image, from_image
from onnxfold.graph.tensors import Array


@converter("ConvTranspose", layouts=ChannelsLast())
def conv_transpose(op: Op) -> None:
    """Transposed convolution in one or two dimensions; constant weights.

    Groups are taken apart by a SPLIT; a dilated kernel is written with the zeros between its taps. The result of a
    VALID transposed convolution is cropped where SAME does not say what ONNX's pads say.
    """
    inputs, per_group, *size = op.shape(1)
    rank = len(size) + 2
    if rank not in (3, 4):
        op.refuse(f"TFLite has no transposed convolution in {rank - 2} dimensions that the runtimes share")
    op.required_weight(1, "weight")
    layout, group = channels_last(rank), op.integer("group", 1)
    flat = [1] if rank == 3 else []
    dilation = [*flat, *op.integers("dilations", [1] * len(size))]
    stride = [*flat, *op.integers("strides", [1] * len(size))]
    kernel = [(k - 1) * d + 1 for k, d in zip([*flat, *size], dilation, strict=True)]
    x = as_image(op, op.read(0, layout))
    spatial, output = [int(d) for d in x.shape[1:3]], [*flat, *(int(d) for d in op.result()[2:])]
    begins = [
        *([0] if flat else []),
        *_begins(op, spatial[len(flat) :], size, stride[len(flat) :], output[len(flat) :]),
    ]

    def weights(group_index: int) -> Value:
        rows = slice(group_index * inputs // group, (group_index + 1) * inputs // group)
        return op.weight(1, lambda w: _spread_taps(w[rows], dilation).transpose(1, 2, 3, 0))

    bias = op.weight(2) if op.has_input(2) else None
    parts = [x]
    if group > 1:
        shapes = [(*x.shape[:3], inputs // group)] * group
        axis = op.graph.constant(np.array(3, np.int32))
        parts = op.graph.op_several("SPLIT", [axis, x], shapes, [x.element_type] * group, numSplits=group)
    results = [_one(op, part, weights(i), kernel, stride, begins, output) for i, part in enumerate(parts)]
    y = results[0]
    if group > 1:
        y = op.graph.op("CONCATENATION", list(results), (*y.shape[:3], per_group * group), axis=3)
    if bias is not None:
        y = op.graph.op("ADD", [y, bias], y.shape)
    op.write(from_image(op, y, rank), layout)


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


def _one(
    op: Op, x: Value, weights: Value, kernel: list[int], stride: list[int], begins: list[int], output: list[int]
) -> Value:
    kinds, spatial = schema().Padding, [int(d) for d in x.shape[1:3]]
    full = [s * (n - 1) + k for n, k, s in zip(spatial, kernel, stride, strict=True)]
    same = all(
        n == math.ceil(o / s) and f >= o and b == (f - o) // 2
        for n, s, f, o, b in zip(spatial, stride, full, output, begins, strict=True)
    )
    filters = int(weights.shape[0])
    settings: dict[str, Any] = {"strideH": stride[0], "strideW": stride[1]}
    if same or (full == output and not any(begins)):
        kind = kinds.VALID if full == output and not any(begins) else kinds.SAME
        shape = (x.shape[0], *output, filters)
        return op.graph.op(
            "TRANSPOSE_CONV", [_shape(op, x, shape), weights, x], shape, "FLOAT32", padding=int(kind), **settings
        )
    shape = (x.shape[0], *full, filters)
    y = op.graph.op(
        "TRANSPOSE_CONV", [_shape(op, x, shape), weights, x], shape, "FLOAT32", padding=int(kinds.VALID), **settings
    )
    after = [b + o - f for b, o, f in zip(begins, output, full, strict=True)]
    if any(a > 0 for a in after) or any(b < 0 for b in begins):  # output_padding, or a crop below zero
        amounts = np.array(
            [(0, 0), *((max(-b, 0), max(a, 0)) for b, a in zip(begins, after, strict=True)), (0, 0)], np.int32
        )
        padded = (x.shape[0], *(int(d) + int(a.sum()) for d, a in zip(shape[1:3], amounts[1:3], strict=True)), filters)
        y = op.graph.op("PAD", [y, op.graph.constant(amounts)], padded)
    start = [0, *(max(b, 0) for b in begins), 0]
    if any(start) or tuple(y.shape[1:3]) != tuple(output):
        sizes = [-1, *output, -1]
        y = op.graph.op("SLICE", [y, op.graph.indices(start), op.graph.indices(sizes)], (x.shape[0], *output, filters))
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
