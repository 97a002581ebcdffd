"""Operators that change the shape, join or split, or reorder axes."""

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import channels_last, keeps_order, plain
from onnxfold.export.tflite.layout_rules import ChannelsLast, Follow, Reordering, Reshaping, permuted_layout
from onnxfold.export.tflite.ops.selecting import take
from onnxfold.export.tflite.registry import converter


@converter("Reshape", "Flatten", "Squeeze", "Unsqueeze", layouts=Reshaping())
def reshape(op: Op) -> None:
    """RESHAPE; by way of ONNX's order of axes where elements would change theirs."""
    source_layout, result_layout = op.assigned_layout(), op.planned_layout()
    if op.is_constant(0) or not keeps_order(op.shape(), source_layout, op.result(), result_layout):
        source_layout, result_layout = plain(len(op.shape())), plain(len(op.result()))
    op.write(op.graph.reshape(op.read(0, source_layout), result_layout.shape(op.result())), result_layout)


@converter("Transpose", layouts=Reordering())
def transpose(op: Op) -> None:
    """Nothing where the layouts do it, else TRANSPOSE."""
    rank = len(op.shape())
    source_layout = plain(rank) if op.assigned_layout().block else op.assigned_layout()
    op.write(
        op.read(0, source_layout), permuted_layout(source_layout, op.integers("perm", list(reversed(range(rank)))))
    )


@converter("Concat", layouts=Follow())
def concat(op: Op) -> None:
    """CONCATENATION."""
    layout = plain(2) if op.planned_layout().block else op.planned_layout()
    parts = [op.read(i, layout) for i in range(len(op.node.input))]
    parts = [p for p in parts if 0 not in p.shape]
    if len(parts) == 1:
        op.write(parts[0], layout)
        return
    axis = layout.axis(op.integer("axis", 1))
    op.write(op.graph.op("CONCATENATION", parts, layout.shape(op.result()), axis=axis), layout)


@converter("Split", layouts=Follow())
def split(op: Op) -> None:
    """SPLIT into equal parts, else SPLIT_V."""
    layout = plain(2) if op.planned_layout().block else op.planned_layout()
    x = op.read(0, layout)
    axis = layout.axis(op.integer("axis", 0))
    count = len(op.node.output)
    shapes = [layout.shape(op.result(i)) for i in range(count)]
    sizes = [int(s[axis]) for s in shapes]
    if 0 in sizes:
        op.refuse("a part is empty, and TFLite has no empty tensors")
    axis_tensor = op.graph.constant(np.array(axis, np.int32))
    if count == 1:
        parts = [x]
    elif len(set(sizes)) == 1:
        parts = op.graph.op_several("SPLIT", [axis_tensor, x], shapes, [x.element_type] * count, numSplits=count)
    else:
        inputs = [x, op.graph.indices(sizes), axis_tensor]
        parts = op.graph.op_several("SPLIT_V", inputs, shapes, [x.element_type] * count, numSplits=count)
    for i, part in enumerate(parts):
        op.write(part, layout, i)


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
