"""Factors and terms that are one number."""

import math

from onnx import NodeProto

from onnxfold.graph.view import GraphView


def scaled_input(view: GraphView, node: NodeProto | None, factor: float) -> str | None:
    """Return the tensor that a node multiplies by a factor, None if it multiplies none."""
    if node is None or node.op_type not in ("Mul", "Div"):
        return None
    number = constant(view, node)
    if number is None or (node.op_type == "Div" and not view.is_weight(node.input[1])):
        return None
    number = 1 / number if node.op_type == "Div" else number
    return next(n for n in node.input if not view.is_weight(n)) if math.isclose(number, factor, rel_tol=1e-4) else None


def constant(view: GraphView, node: NodeProto) -> float | None:
    """Return the one number that a node of two inputs has as a weight."""
    weights = [n for n in node.input if view.is_weight(n)]
    if len(weights) != 1 or view.weight_size(weights[0]) != 1:
        return None
    return float(view.weight(weights[0]).reshape(-1)[0])
