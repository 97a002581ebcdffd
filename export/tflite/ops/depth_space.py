"""DepthToSpace and SpaceToDepth."""

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import channels_last
from onnxfold.export.tflite.layout_rules import ChannelsLast
from onnxfold.export.tflite.ops.selecting import take
from onnxfold.export.tflite.registry import converter


@converter("DepthToSpace", layouts=ChannelsLast())
def depth_to_space(op: Op) -> None:
    """DEPTH_TO_SPACE, whose order of channels is DCR; CRD's is permuted first."""
    layout, size = channels_last(4), op.integer("blocksize", 1)
    x = op.read(0, layout)
    if op.text("mode", "DCR") == "CRD":
        channels = int(x.shape[-1])
        order = np.arange(channels).reshape(channels // size**2, size, size).transpose(1, 2, 0).reshape(-1)
        x = take(op, x, order.tolist(), 3)
    op.write(op.graph.op("DEPTH_TO_SPACE", [x], layout.shape(op.result()), blockSize=size), layout)


@converter("SpaceToDepth", layouts=ChannelsLast())
def space_to_depth(op: Op) -> None:
    """SPACE_TO_DEPTH, whose order of channels is DCR; CRD's is permuted afterwards."""
    layout, size = channels_last(4), op.integer("blocksize", 1)
    y = op.graph.op("SPACE_TO_DEPTH", [op.read(0, layout)], layout.shape(op.result()), blockSize=size)
    if op.text("mode", "DCR") == "CRD":
        channels = int(op.shape()[1])
        order = np.arange(channels * size**2).reshape(size, size, channels).transpose(2, 0, 1).reshape(-1)
        y = take(op, y, order.tolist(), 3)
    op.write(y, layout)
