"""Operators that change the shape, join or split, or reorder axes, and padding."""

import numpy as np

from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import NUMPY_TYPES, schema
from onnxfold.export.tflite.layout import (
    ChannelsLast,
    Dynamic,
    Follow,
    Reordering,
    Reshaping,
    channels_last,
    keeps_order,
    permuted_layout,
    plain,
)
from onnxfold.export.tflite.ops.selecting import take, take_ranges
from onnxfold.graph.tensors import Array


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


#: numpy's names of the ways to fill, whose positions are gathered.
_GATHERED = {"edge": "edge", "wrap": "wrap", "reflect": "reflect"}
_MAX_MIRROR_RANK = 4


@converter("Pad", layouts=Follow())
def pad(op: Op) -> None:
    """PAD, PADV2, MIRROR_PAD; edge and wrap as a GATHER per axis. Constant amounts; negative ones crop."""
    layout = plain(2) if op.planned_layout().block else op.planned_layout()
    amounts = _amounts(op)[list(layout.perm)]
    x = op.read(0, layout)
    if any(isinstance(d, Dynamic) and row.any() for d, row in zip(x.shape, amounts, strict=True)):
        op.refuse("it pads a dimension that is free: fix it with --input-shapes")
    crops = {
        i: range(max(-int(a), 0), int(d) - max(-int(b), 0))
        for i, (d, (a, b)) in enumerate(zip(x.shape, amounts, strict=True))
        if a < 0 or b < 0
    }
    x = take_ranges(op, x, crops)
    amounts = np.maximum(amounts, 0)
    mode = op.text("mode", "constant")
    shape = layout.shape(op.result())
    if not amounts.any():
        op.write(x, layout)
        return
    if mode == "constant":
        inputs = [x, op.graph.constant(amounts.astype(np.int32))]
        fill = _fill(op)
        if fill:
            inputs.append(op.graph.constant(np.full((1,) * len(shape), fill, NUMPY_TYPES[x.element_type])))
        op.write(op.graph.op("PADV2" if fill else "PAD", inputs, shape), layout)
    elif (
        mode == "reflect" and len(shape) <= _MAX_MIRROR_RANK and np.all(amounts.max(axis=1) < [int(d) for d in x.shape])
    ):
        reflect = int(schema().MirrorPadMode.REFLECT)
        op.write(
            op.graph.op("MIRROR_PAD", [x, op.graph.constant(amounts.astype(np.int32))], shape, mode=reflect), layout
        )
    elif mode in _GATHERED:
        for axis, row in enumerate(amounts):
            if row.any():
                positions = np.pad(np.arange(int(x.shape[axis])), tuple(row), mode=_GATHERED[mode])  # type: ignore[call-overload]
                x = take(op, x, positions.tolist(), axis)
        op.write(x, layout)
    else:
        op.refuse(f"the mode '{mode}' is unknown")


def _amounts(op: Op) -> Array:
    """Return (rank, 2): what is added before and after each ONNX axis."""
    rank = len(op.shape())
    pads = op.numbers(1, "pads", "amounts") or [0] * 2 * rank
    axes = [int(a) % rank for a in op.required_weight(3, "axes").reshape(-1)] if op.has_input(3) else list(range(rank))
    amounts = np.zeros((rank, 2), np.int64)
    amounts[axes] = np.array(pads).reshape(2, -1).T
    return amounts


def _fill(op: Op) -> float:
    if op.has_attribute("value"):
        return op.number("value", 0.0)
    return float(op.required_weight(2, "fill value").reshape(-1)[0]) if op.has_input(2) else 0.0
