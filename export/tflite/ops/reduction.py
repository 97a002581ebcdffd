"""Reductions along axes, and the positions of extremes."""

from collections.abc import Callable

import numpy as np

from onnxfold.export.tflite.calculator import Calculator
from onnxfold.export.tflite.context import Op, converter
from onnxfold.export.tflite.graph import Value, type_of
from onnxfold.export.tflite.layout import NodeShapes, Reducing, plain, remaining_layout


def _declared_axes(op: NodeShapes) -> tuple[int, ...]:
    """Return the axes that go, for the planner."""
    rank = op.rank(op.reads[0])
    axes = op.constant(1) if len(op.inputs) > 1 else np.array(op.integers("axes"))
    return tuple(range(rank)) if axes is None or not axes.size else tuple(int(a) for a in axes.reshape(-1))


def _declared_axis(op: NodeShapes) -> tuple[int, ...]:
    return (op.integer("axis", 0),)


Reduce = Callable[[Calculator, Value, list[int], bool], Value]

#: Reductions that TFLite has, for numbers and for truth values.
_SAME = {
    "ReduceMean": ("MEAN", "MEAN"), "ReduceSum": ("SUM", "SUM"), "ReduceMax": ("REDUCE_MAX", "REDUCE_ANY"),
    "ReduceMin": ("REDUCE_MIN", "REDUCE_ALL"), "ReduceProd": ("REDUCE_PROD", "REDUCE_PROD"),
}  # fmt: skip
_AROUND_SUMS: dict[str, Reduce] = {
    "ReduceL1": lambda c, x, axes, keep: c.reduce("SUM", c.unary("ABS", x), axes, keep),
    "ReduceL2": lambda c, x, axes, keep: c.unary("SQRT", c.reduce("SUM", c.mul(x, x), axes, keep)),
    "ReduceSumSquare": lambda c, x, axes, keep: c.reduce("SUM", c.mul(x, x), axes, keep),
    "ReduceLogSum": lambda c, x, axes, keep: c.unary("LOG", c.reduce("SUM", x, axes, keep)),
    "ReduceLogSumExp": lambda c, x, axes, keep: _log_sum_exp(c, x, axes, keep),
}


def _log_sum_exp(c: Calculator, x: Value, axes: list[int], keep: bool) -> Value:
    """Return log sum exp, with the maximum taken out so that nothing overflows."""
    shifted = c.sub(x, c.reduce("REDUCE_MAX", x, axes, True))
    total = c.unary("LOG", c.reduce("SUM", c.unary("EXP", shifted), axes, keep))
    return c.add(total, c.reduce("REDUCE_MAX", x, axes, keep))


@converter(*_SAME, *_AROUND_SUMS, layouts=Reducing(_declared_axes))
def reduction(op: Op) -> None:
    """The reduction of the same meaning, or the arithmetic around a SUM; axes must be constant."""
    rank = len(op.shape())
    axes = op.numbers(1, "axes", "axes")
    layout = op.assigned_layout() if not op.assigned_layout().block else plain(rank)
    x = op.read(0, layout)
    if not axes and op.integer("noop_with_empty_axes", 0):
        op.write(x, layout)
        return
    axes = axes or list(range(rank))
    keep = bool(op.integer("keepdims", 1))
    places = [layout.axis(a) for a in axes]
    if op.op_type in _SAME:
        y = op.calc.reduce(_SAME[op.op_type][x.element_type == "BOOL"], x, places, keep)
    else:
        y = _AROUND_SUMS[op.op_type](op.calc, x, places, keep)
    op.write(y, layout if keep else remaining_layout(layout, axes))


@converter("ArgMax", "ArgMin", layouts=Reducing(_declared_axis))
def arg_extreme(op: Op) -> None:
    """ARG_MAX, ARG_MIN; of several equal extremes the last one is the first one of the reversed axis."""
    code = "ARG_MAX" if op.op_type == "ArgMax" else "ARG_MIN"
    layout = op.assigned_layout() if not op.assigned_layout().block else plain(len(op.shape()))
    x = op.read(0, layout)
    onnx_axis = op.integer("axis", 0)
    axis = layout.axis(onnx_axis)
    last = bool(op.integer("select_last_index", 0))
    if last:
        x = op.graph.op("REVERSE_V2", [x, op.graph.indices([axis])], x.shape)
    rest = tuple(d for i, d in enumerate(x.shape) if i != axis)
    y = op.graph.op(code, [x, op.graph.constant(np.array(axis, np.int32))], rest, "INT64", outputType=type_of("INT64"))
    if last:
        y = op.calc.sub(int(x.shape[axis]) - 1, y)
    if op.integer("keepdims", 1):
        y = op.graph.reshape(y, tuple(1 if i == axis else d for i, d in enumerate(x.shape)))
        op.write(y, layout)
    else:
        op.write(y, remaining_layout(layout, [onnx_axis]))
