"""Operators that change the shape or reorder axes."""

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.layout import keeps_order, plain
from onnxfold.export.tflite.layout_rules import Reordering, Reshaping, permuted
from onnxfold.export.tflite.registry import converter


@converter("Reshape", "Flatten", "Squeeze", "Unsqueeze", layouts=Reshaping())
def reshape(op: Op) -> None:
    """RESHAPE; by way of ONNX's order of axes where elements would change theirs."""
    given, wanted = op.assigned(), op.planned()
    if op.is_constant(0) or not keeps_order(op.shape(), given, op.result(), wanted):
        given, wanted = plain(len(op.shape())), plain(len(op.result()))
    op.write(op.graph.reshape(op.read(0, given), wanted.shape(op.result())), wanted)


@converter("Transpose", layouts=Reordering())
def transpose(op: Op) -> None:
    """Nothing where the layouts do it, else TRANSPOSE."""
    rank = len(op.shape())
    given = plain(rank) if op.assigned().block else op.assigned()
    op.write(op.read(0, given), permuted(given, op.integers("perm", list(reversed(range(rank))))))
