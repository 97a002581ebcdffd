"""Numbers that a node picks out of a short list, such as the dimensions that Shape gives."""

import numpy as np
from onnx import NodeProto

from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView


def picked_dimensions(view: GraphView, node: NodeProto, count: int) -> Array | None:
    """Return which of `count` numbers, its first input, a Gather or a Slice gives out."""
    constants = [view.weight(name) if view.is_weight(name) else None for name in node.input[1:]]
    if any(values is None for values in constants) or not constants:
        return None
    numbers = [np.asarray(values).reshape(-1) for values in constants if values is not None]
    if node.op_type == "Gather":
        return np.asarray(constants[0], np.int64) % count
    if node.op_type != "Slice" or len(numbers) < 2 or any(len(values) != 1 for values in numbers):
        return None
    step = int(numbers[3][0]) if len(numbers) > 3 else 1
    return np.arange(count)[int(numbers[0][0]) : int(numbers[1][0]) : step]
