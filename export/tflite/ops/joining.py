"""Concat and Split."""

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import plain
from onnxfold.export.tflite.layout_rules import Follow
from onnxfold.export.tflite.registry import converter


@converter("Concat", layouts=Follow())
def concat(op: Op) -> None:
    """CONCATENATION."""
    layout = plain(2) if op.planned().block else op.planned()
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
    layout = plain(2) if op.planned().block else op.planned()
    x = op.read(0, layout)
    axis = layout.axis(op.integer("axis", 0))
    count = len(op.node.output)
    shapes = [layout.shape(op.result(i)) for i in range(count)]
    sizes = [int(s[axis]) for s in shapes]
    if 0 in sizes:
        op.refuse("a part is empty, and TFLite has no empty tensors")
    where = op.graph.constant(np.array(axis, np.int32))
    if count == 1:
        parts = [x]
    elif len(set(sizes)) == 1:
        parts = op.graph.op_several("SPLIT", [where, x], shapes, [x.element_type] * count, numSplits=count)
    else:
        inputs = [x, op.graph.indices(sizes), where]
        parts = op.graph.op_several("SPLIT_V", inputs, shapes, [x.element_type] * count, numSplits=count)
    for i, part in enumerate(parts):
        op.write(part, layout, i)
