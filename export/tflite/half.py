"""float16 weights: stored in half the bytes, widened by a DEQUANTIZE that runtimes evaluate once."""

import numpy as np

from onnxfold.export.tflite.graph import Graph, Operator, Value

#: Constants of fewer elements stay: their DEQUANTIZE would cost more than it saves.
_SMALLEST = 256


def store_as_float16(graph: Graph) -> None:
    """Replace float32 weights by float16 ones, each followed by a DEQUANTIZE.

    Weights with values outside of float16's range stay as they are.
    """
    widened: dict[int, Value | None] = {}
    first: list[Operator] = []
    for op in graph.operators:
        for i, value in enumerate(op.inputs):
            if value is None or not value.is_constant or value.element_type != "FLOAT32":
                continue
            if int(np.prod(value.shape)) < _SMALLEST:
                continue
            if id(value) not in widened:
                widened[id(value)] = _widen(value, first)
            op.inputs[i] = widened[id(value)] or value
    graph.operators[:0] = first


def _widen(value: Value, operators: list[Operator]) -> Value | None:
    if np.abs(value.values()).max() > np.finfo(np.float16).max:
        return None
    load = value.values
    half = Value(value.shape, "FLOAT16", f"{value.name}_float16", lambda: load().astype(np.float16))
    result = Value(value.shape, "FLOAT32", value.name)
    operators.append(Operator("DEQUANTIZE", [half], [result], {}))
    return result
