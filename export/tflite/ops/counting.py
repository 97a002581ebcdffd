"""CumSum, TopK and OneHot: operators that count along one axis."""

import numpy as np

from onnxfold.export.tflite.calculator import WIDER, Calculator
from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import Dynamic
from onnxfold.export.tflite.layout_rules import LayoutRule
from onnxfold.export.tflite.registry import converter


@converter("CumSum", layouts=LayoutRule())
def cum_sum(op: Op) -> None:
    """CUMSUM along a constant axis."""
    x, axis = op.read(0), int(op.required(1, "axis").reshape(-1)[0]) % len(op.shape())
    exclusive, reverse = bool(op.integer("exclusive", 0)), bool(op.integer("reverse", 0))
    inputs = [x, op.graph.constant(np.array(axis, np.int32))]
    op.write(op.graph.op("CUMSUM", inputs, x.shape, exclusive=exclusive, reverse=reverse))


@converter("TopK", layouts=LayoutRule())
def top_k(op: Op) -> None:
    """TOPK_V2, which takes the largest along the last axis; the smallest ones are the largest of what is negated."""
    x, rank = op.read(0), len(op.shape())
    k = op.integer("k", 0) or int(op.required(1, "k").reshape(-1)[0])
    axis, largest = op.integer("axis", -1) % rank, op.integer("largest", 1)
    if isinstance(x.shape[axis], Dynamic):
        op.refuse("it takes positions of a dimension that is free: fix it with --input-shapes")
    if x.element_type not in ("FLOAT32", "INT32", "INT64"):
        op.refuse(f"TFLite's TOPK_V2 and NEG do not take {x.element_type.lower()}")
    calculator, order = Calculator(op.graph), [i for i in range(rank) if i != axis] + [axis]
    x = op.graph.transpose(x, order)
    if not largest:
        x = calculator.unary("NEG", x)
    shape = (*x.shape[:-1], k)
    inputs = [x, op.graph.constant(np.array(k, np.int32))]
    values, places = op.graph.op_several("TOPK_V2", inputs, [shape, shape], [x.element_type, "INT32"])
    if not largest:
        values = calculator.unary("NEG", values)
    back = [order.index(i) for i in range(rank)]
    op.write(op.graph.transpose(values, back))
    if len(op.node.output) > 1 and op.node.output[1]:
        op.write(op.graph.transpose(op.graph.cast(places, "INT64"), back), index=1)


@converter("OneHot", layouts=LayoutRule())
def one_hot(op: Op) -> None:
    """ONE_HOT; negative indices are counted from the end."""
    calculator = Calculator(op.graph)
    depth = int(op.required(1, "depth").reshape(-1)[0])
    off, on = op.required(2, "pair of values")
    if op.result_type() in WIDER:
        op.refuse(f"TFLite's ONE_HOT does not write {op.result_type().lower()}")
    index = op.graph.cast(op.read(0), "INT32")
    index = calculator.select(calculator.greater(0, index), calculator.add(index, depth), index)
    axis = op.integer("axis", -1) % len(op.result())
    inputs = [index, *(op.graph.constant(np.array(v)) for v in (np.int32(depth), on, off))]
    last = axis == len(op.result()) - 1
    op.write(op.graph.op("ONE_HOT", inputs, op.result(), op.result_type(), axis=-1 if last else axis))
