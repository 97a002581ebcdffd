"""Operators that move elements: slices, gathers, repetitions, counts, choices, shapes, joints, splits and padding."""

from collections.abc import Sequence
from math import prod

import numpy as np

from onnxfold.export.tflite import layout as layouts
from onnxfold.export.tflite.context import WIDER, Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.ops import layers
from onnxfold.graph.tensors import Array

_MAX_SLICE_RANK = 5


@converter("Slice", layouts=layouts.Follow())
def slice_(op: Op) -> Value:
    """STRIDED_SLICE; of tensors of more than five axes a GATHER per axis. Constant starts, ends and steps."""
    x, shape = op.read(0), op.shape()
    starts, ends, axes, steps = (op.numbers(i, n, n) for i, n in enumerate(("starts", "ends", "axes", "steps"), 1))
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    ranges: dict[int, range] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis % len(shape)]
        picked = range(int(size))[start:end:step]
        if isinstance(size, layouts.Dynamic):
            if (start, step) != (0, 1) or end < np.iinfo(np.int32).max:
                op.require_fixed([size], "takes a part of")
            continue
        if not picked:
            op.refuse("the result is empty, and TFLite has no empty tensors")
        if picked != range(int(size)):
            ranges[op.layout.axis(axis)] = picked
    return take_ranges(op, x, ranges)


def take_ranges(op: Op, x: Value, ranges: dict[int, range]) -> Value:
    """Return the given positions of axes of a TFLite tensor."""
    shape = tuple(len(ranges[i]) if i in ranges else d for i, d in enumerate(x.shape))
    if not ranges:
        return x
    if len(shape) > _MAX_SLICE_RANK:
        for axis, picked in ranges.items():
            x = take(op, x, list(picked), axis)
        return x
    full = [ranges.get(i, range(1)) for i in range(len(shape))]
    whole = sum(1 << i for i in range(len(shape)) if i not in ranges)
    # An end in front of position 0 can only be said by a mask.
    open_end = sum(1 << i for i, r in ranges.items() if r.step < 0 and r.stop < 0)
    numbers = [[r.start for r in full], [max(r.stop, 0) for r in full], [r.step for r in full]]
    return op.graph.op(
        "STRIDED_SLICE", [x, *(op.graph.indices(n) for n in numbers)], shape, beginMask=whole, endMask=whole | open_end
    )


def take(op: Op, x: Value, positions: Sequence[int], axis: int) -> Value:
    """Append a GATHER of constant positions of one axis."""
    shape = tuple(len(positions) if i == axis else d for i, d in enumerate(x.shape))
    return op.graph.op("GATHER", [x, op.graph.indices(positions)], shape, axis=axis)


class _Gathering(layouts.SameRank):
    """One index removes an axis, a vector of them keeps it; more replace one axis by several."""

    def ties(self, op: layouts.NodeShapes) -> list[str]:
        """Tie data and result of the same rank, unless the index is computed."""
        return super().ties(op) if op.reads == [op.node.input[0]] else []

    def demands(self, op: layouts.NodeShapes, assigned: layouts.Layouts) -> layouts.Demands:
        """Ask for the data as it is where constant positions are taken from it."""
        data, result = op.node.input[0], op.writes[0]
        if data not in op.shapes or len(op.reads) > 1 or op.rank(result) > op.rank(data) or assigned[data].block:
            return super().demands(op, assigned)
        layout, same = assigned[data], op.rank(data) == op.rank(result)
        return [(data, layout), (result, layout if same else layouts.remaining_layout(layout, [op.integer("axis", 0)]))]


@converter("Gather", layouts=_Gathering())
def gather(op: Op) -> None:
    """GATHER; constant negative positions are counted from the front, computed ones by FLOOR_MOD."""
    shape = op.shape()
    onnx_axis = op.integer("axis", 0) % len(shape)
    size = shape[onnx_axis]
    op.require_fixed([size], "takes positions of")
    indices_rank, layout = len(op.shape(1)), layouts.plain(len(shape))
    if op.is_constant(1):
        values = op.required_weight(1, "indices")
        index = op.graph.constant(np.where(values < 0, values + int(size), values).astype(np.int32), "indices")
        if indices_rank < 2 and not op.assigned_layout().block:
            layout = op.assigned_layout()
    else:
        index = op.graph.binary("FLOOR_MOD", op.read(1), int(size))
    x = op.read(0, layout)
    axis = layout.axis(onnx_axis)
    result = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    y = op.graph.op("GATHER", [x, index], result, axis=axis)
    if indices_rank == 1:
        op.write(y, layout)
    elif indices_rank == 0:
        op.write(y, layouts.remaining_layout(layout, [onnx_axis]))
    else:
        op.write(y)


@converter("GatherElements", layouts=layouts.LayoutRule())
def gather_elements(op: Op) -> Value:
    """GATHER of computed places in the flattened tensor."""
    c, x, result = op.graph, op.read(0), op.result()
    if any(isinstance(size, layouts.Dynamic) for size in (*x.shape, *result)):
        op.refuse("it takes positions of a tensor whose size is free: fix it with --input-shapes")
    axis, strides = op.integer("axis", 0) % len(x.shape), [prod(x.shape[i + 1 :]) for i in range(len(x.shape))]
    grid = np.indices(result)
    grid[axis] = 0  # the index says it
    index = c.binary("FLOOR_MOD", c.cast(op.read(1), "INT32"), int(x.shape[axis]))
    places = c.add(c.mul(index, strides[axis]), c.constant(np.tensordot(strides, grid, axes=1).astype(np.int32)))
    return c.op("GATHER", [c.reshape(x, (prod(x.shape),)), places], result, axis=0)


@converter("GatherND", layouts=layouts.LayoutRule())
def gather_nd(op: Op) -> Value:
    """GATHER_ND; batch dimensions are constant positions in front of the others."""
    c, x, index, batch = op.graph, op.read(0), op.graph.cast(op.read(1), "INT32"), op.integer("batch_dims", 0)
    sizes = x.shape[: batch + index.shape[-1]]
    op.require_fixed(sizes, "takes positions of")
    if batch:
        places = np.moveaxis(np.indices(index.shape[:-1], np.int32)[:batch], 0, -1)
        shape = (*index.shape[:-1], len(sizes))
        index = c.op("CONCATENATION", [c.constant(places), index], shape, axis=len(shape) - 1)
    index = c.binary("FLOOR_MOD", index, c.constant(np.array(sizes, np.int32)))
    return c.op("GATHER_ND", [x, index], op.result())


#: How what is written to a place goes with what stands there.
_SCATTERED = {"none": "", "add": "ADD", "mul": "MUL", "max": "MAXIMUM", "min": "MINIMUM"}


@converter("ScatterND", layouts=layouts.LayoutRule())
def scatter_nd(op: Op) -> Value:
    """SCATTER_ND into zeros, of which a SELECT_V2 takes the places that are written; equal places in turn."""
    c, x, code = op.graph, op.read(0), _SCATTERED[op.text("reduction", "none")]
    op.require_fixed((*x.shape, *op.shape(1)), "writes to places of")
    sizes = x.shape[: op.shape(1)[-1]]
    count, inside = prod(op.shape(1)[:-1]), x.shape[len(sizes) :]
    updates = c.reshape(op.read(2), (count, *inside))

    def write(x: Value, index: Value, updates: Value, is_written: Value) -> Value:
        if code:
            updates = c.binary(code, c.op("GATHER_ND", [x, index], updates.shape, x.element_type), updates)
        there = c.reshape(is_written, (*sizes, *(1,) * len(inside)))
        return c.select(there, c.op("SCATTER_ND", [index, updates, c.indices(x.shape)], x.shape, x.element_type), x)

    if not op.is_constant(1):
        if code:
            op.refuse("it computes with what stands at places that are computed, too: these may be equal")
        index = c.reshape(c.cast(op.read(1), "INT32"), (count, len(sizes)))
        index = c.binary("FLOOR_MOD", index, c.constant(np.array(sizes, np.int32)))
        ones = [index, c.constant(np.ones(count, np.int32)), c.indices(sizes)]
        return write(x, index, updates, c.greater(c.op("SCATTER_ND", ones, sizes, "INT32"), 0))
    places = op.required_weight(1, "indices").reshape(count, -1) % np.array(sizes, int)
    left = np.arange(count)
    while len(left):
        rows = np.sort(left[np.unique(places[left], axis=0, return_index=True)[1]])
        left, mask = np.setdiff1d(left, rows), np.zeros(sizes, np.bool_)
        mask[tuple(places[rows].T)] = True
        part = updates if len(rows) == count else take(op, updates, rows.tolist(), 0)
        x = write(x, c.constant(places[rows].astype(np.int32)), part, c.constant(mask))
    return x


@converter("Expand", layouts=layouts.Follow())
def expand(op: Op) -> Value:
    """BROADCAST_TO; a TILE where the batch is free."""
    shape = op.layout.shape(op.result())
    op.required_weight(1, "shape")
    x = op.operand(0)
    x = op.graph.reshape(x, (1,) * (len(shape) - len(x.shape)) + tuple(x.shape))
    if not any(isinstance(d, layouts.Dynamic) for d in shape):
        return op.graph.op("BROADCAST_TO", [x, op.graph.indices(shape)], shape, version=2)
    return _tile(op, x, [int(r) // int(d) for r, d in zip(shape, x.shape, strict=True)], shape)


@converter("Tile", layouts=layouts.Follow())
def tile(op: Op) -> Value:
    """TILE."""
    layout, repeats = op.layout, op.required_weight(1, "repeats")
    return _tile(op, op.read(0), [int(repeats[p]) for p in layout.perm], layout.shape(op.result()))


def _tile(op: Op, x: Value, repeats: list[int], shape: tuple[int, ...]) -> Value:
    if all(r == 1 for r in repeats):
        return x
    return op.graph.op("TILE", [x, op.graph.indices(repeats)], shape)


@converter("CumSum", layouts=layouts.LayoutRule())
def cum_sum(op: Op) -> Value:
    """CUMSUM along a constant axis."""
    x, axis = op.read(0), int(op.required_weight(1, "axis").reshape(-1)[0]) % len(op.shape())
    exclusive, reverse = bool(op.integer("exclusive", 0)), bool(op.integer("reverse", 0))
    inputs = [x, op.graph.constant(np.array(axis, np.int32))]
    return op.graph.op("CUMSUM", inputs, x.shape, exclusive=exclusive, reverse=reverse)


@converter("TopK", layouts=layouts.LayoutRule())
def top_k(op: Op) -> None:
    """TOPK_V2, which takes the largest along the last axis; the smallest ones are the largest of what is negated."""
    x, rank = op.read(0), len(op.shape())
    k = op.integer("k", 0) or int(op.required_weight(1, "k").reshape(-1)[0])
    axis, largest = op.integer("axis", -1) % rank, op.integer("largest", 1)
    op.require_fixed([x.shape[axis]], "takes positions of")
    if x.element_type not in ("FLOAT32", "INT32", "INT64"):
        op.refuse(f"TFLite's TOPK_V2 and NEG do not take {x.element_type.lower()}")
    order = [i for i in range(rank) if i != axis] + [axis]
    x = op.graph.transpose(x, order)
    if not largest:
        x = op.graph.unary("NEG", x)
    shape = (*x.shape[:-1], k)
    inputs = [x, op.graph.constant(np.array(k, np.int32))]
    values, places = op.graph.op_several("TOPK_V2", inputs, [shape, shape], [x.element_type, "INT32"])
    if not largest:
        values = op.graph.unary("NEG", values)
    back = [order.index(i) for i in range(rank)]
    op.write(op.graph.transpose(values, back))
    op.write(op.graph.transpose(op.graph.cast(places, "INT64"), back), index=1)


@converter("OneHot", layouts=layouts.LayoutRule())
def one_hot(op: Op) -> Value:
    """ONE_HOT; negative indices are counted from the end."""
    depth = int(op.required_weight(1, "depth").reshape(-1)[0])
    off, on = op.required_weight(2, "pair of values")
    if op.result_type() in WIDER:
        op.refuse(f"TFLite's ONE_HOT does not write {op.result_type().lower()}")
    index = op.graph.cast(op.read(0), "INT32")
    index = op.graph.select(op.graph.greater(0, index), op.graph.add(index, depth), index)
    axis = op.integer("axis", -1) % len(op.result())
    inputs = [index, *(op.graph.constant(np.array(v)) for v in (np.int32(depth), on, off))]
    last = axis == len(op.result()) - 1
    return op.graph.op("ONE_HOT", inputs, op.result(), op.result_type(), axis=-1 if last else axis)


@converter("Reshape", "Flatten", "Squeeze", "Unsqueeze", layouts=layouts.Reshaping())
def reshape(op: Op) -> None:
    """RESHAPE; by way of ONNX's order of axes where elements would change theirs."""
    source_layout, result_layout = op.assigned_layout(), op.planned_layout()
    if op.is_constant(0) or not layouts.keeps_order(op.shape(), source_layout, op.result(), result_layout):
        source_layout, result_layout = layouts.plain(len(op.shape())), layouts.plain(len(op.result()))
    op.write(op.graph.reshape(op.read(0, source_layout), result_layout.shape(op.result())), result_layout)


@converter("Transpose", layouts=layouts.Reordering())
def transpose(op: Op) -> None:
    """Nothing where the layouts do it, else TRANSPOSE."""
    layout, perm = op.assigned_layout().unflattened, op.integers("perm", list(reversed(range(len(op.shape())))))
    op.write(op.read(0, layout), layouts.permuted_layout(layout, perm))


@converter("Concat", layouts=layouts.Follow())
def concat(op: Op) -> Value:
    """CONCATENATION."""
    parts = [p for p in map(op.read, range(len(op.node.input))) if 0 not in p.shape]
    return op.graph.concatenate(parts, op.layout.axis(op.integer("axis", 1)))


@converter("Split", layouts=layouts.Follow())
def split(op: Op) -> None:
    """SPLIT into equal parts, else SPLIT_V."""
    x, axis, count = op.read(0), op.layout.axis(op.integer("axis", 0)), len(op.node.output)
    shapes = [op.layout.shape(op.result(i)) for i in range(count)]
    sizes = [int(s[axis]) for s in shapes]
    if 0 in sizes:
        op.refuse("a part is empty, and TFLite has no empty tensors")
    if len(set(sizes)) == 1:
        parts = op.graph.split(x, axis, count)
    else:
        inputs = [x, op.graph.indices(sizes), op.graph.constant(np.array(axis, np.int32))]
        parts = op.graph.op_several("SPLIT_V", inputs, shapes, [x.element_type] * count, numSplits=count)
    for i, part in enumerate(parts):
        op.write(part, index=i)


@converter("DepthToSpace", layouts=layouts.ChannelsLast())
def depth_to_space(op: Op) -> Value:
    """DEPTH_TO_SPACE, whose order of channels is DCR; CRD's is permuted first."""
    x, size = op.read(0), op.integer("blocksize", 1)
    if op.text("mode", "DCR") == "CRD":
        channels = int(x.shape[-1])
        order = np.arange(channels).reshape(channels // size**2, size, size).transpose(1, 2, 0).reshape(-1)
        x = take(op, x, order.tolist(), 3)
    return op.graph.op("DEPTH_TO_SPACE", [x], op.layout.shape(op.result()), blockSize=size)


@converter("SpaceToDepth", layouts=layouts.ChannelsLast())
def space_to_depth(op: Op) -> Value:
    """SPACE_TO_DEPTH, whose order of channels is DCR; CRD's is permuted afterwards."""
    size = op.integer("blocksize", 1)
    y = op.graph.op("SPACE_TO_DEPTH", [op.read(0)], op.layout.shape(op.result()), blockSize=size)
    if op.text("mode", "DCR") == "CRD":
        channels = int(op.shape()[1])
        order = np.arange(channels * size**2).reshape(size, size, channels).transpose(2, 0, 1).reshape(-1)
        y = take(op, y, order.tolist(), 3)
    return y


#: Ways to fill, by their names in numpy, too, whose positions are gathered.
_GATHERED = ("edge", "wrap", "reflect")
_MAX_MIRROR_RANK = 4


@converter("Pad", layouts=layouts.Follow())
def pad(op: Op) -> Value:
    """PAD, PADV2, MIRROR_PAD; edge and wrap as a GATHER per axis. Constant amounts; negative ones crop."""
    x = op.read(0)
    amounts = _amounts(op)[list(op.layout.perm)]
    op.require_fixed((d for d, row in zip(x.shape, amounts, strict=True) if row.any()), "pads")
    crops = {
        i: range(max(-int(a), 0), int(d) - max(-int(b), 0))
        for i, (d, (a, b)) in enumerate(zip(x.shape, amounts, strict=True))
        if a < 0 or b < 0
    }
    x = take_ranges(op, x, crops)
    amounts = np.maximum(amounts, 0)
    mode = op.text("mode", "constant")
    if not amounts.any():
        return x
    if mode == "constant":
        return layers.pad(op, x, amounts.tolist(), _fill(op))
    is_within = np.all(amounts.max(axis=1) < [int(d) for d in x.shape])
    if mode == "reflect" and len(x.shape) <= _MAX_MIRROR_RANK and is_within:
        return layers.pad(op, x, amounts.tolist(), mirror="REFLECT")
    if mode not in _GATHERED:
        op.refuse(f"the mode '{mode}' is unknown")
    for axis, row in enumerate(amounts):
        if row.any():
            positions = np.pad(np.arange(int(x.shape[axis])), tuple(row), mode=mode)  # type: ignore[call-overload]
            x = take(op, x, positions.tolist(), axis)
    return x


def _amounts(op: Op) -> Array:
    """Return (rank, 2): what is added before and after each ONNX axis."""
    rank = len(op.shape())
    pads = op.numbers(1, "pads", "amounts") or [0] * 2 * rank
    axes = op.numbers(3, "axes", "axes") or list(range(rank))
    amounts = np.zeros((rank, 2), np.int64)
    amounts[axes] = np.array(pads).reshape(2, -1).T
    return amounts


def _fill(op: Op) -> float:
    if op.has_attribute("value"):
        return op.number("value", 0.0)
    return float(op.required_weight(2, "fill value").reshape(-1)[0]) if op.has_input(2) else 0.0
