"""Conv: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D."""

from typing import Any

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import channels_last
from onnxfold.export.tflite.layout_rules import ChannelsLast
from onnxfold.export.tflite.registry import converter
from onnxfold.export.tflite.windows import TFLiteWindow, as_image, from_image, image_window, padding, window
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
