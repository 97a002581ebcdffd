"""Pad."""

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import Dynamic, plain
from onnxfold.export.tflite.layout_rules import Follow
from onnxfold.export.tflite.ops.selecting import take, take_ranges
from onnxfold.export.tflite.registry import converter
from onnxfold.export.tflite.schema import NUMPY_TYPES, schema
from onnxfold.graph.tensors import Array

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
