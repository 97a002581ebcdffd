"""Fuse x min(max(x + 3, 0), 6) / 6, from exporters below operator set 14, into HardSwish."""

import math
from dataclasses import dataclass

from onnx import NodeProto, helper

from onnxfold.export.fusion.scalar_factors import constant, scaled_input
from onnxfold.graph.nodes import attr_float
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FuseHardSwish(Pass):
    """Replace x HardSigmoid(x), and what it is made of, by HardSwish: in int8 every step more is a rounding more.

    Case 1: (x clip) / 6. Case 2: x (clip / 6). / 6 may be a Div or a Mul. Nobody else may read what lies in between.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match."""
        replacements: dict[str, NodeProto] = {}
        for node in view.nodes:
            source = _argument(view, node)
            last = None if source is None else _product(view, node, source)
            if source is not None and last is not None:
                replacements[last.output[0]] = helper.make_node("HardSwish", [source], [last.output[0]], name=last.name)
        return PassResult(view.substitute(replacements))


def _argument(view: GraphView, node: NodeProto) -> str | None:
    """Return x of HardSigmoid(x) or of min(max(x + 3, 0), 6)."""
    if node.op_type == "HardSigmoid":
        numbers = attr_float(node, "alpha", 0.2), attr_float(node, "beta", 0.5)
        argument: str = node.input[0]
        return argument if math.isclose(numbers[0], 1 / 6, rel_tol=1e-4) and numbers[1] == 0.5 else None
    if node.op_type != "Clip" or [_limit(view, node, i, n) for i, n in ((1, "min"), (2, "max"))] != [0.0, 6.0]:
        return None
    plus = view.producer(node.input[0])
    if plus is None or plus.op_type != "Add" or constant(view, plus) != 3.0 or only_reader(view, node.input[0]) is None:
        return None
    return str(next(n for n in plus.input if not view.is_weight(n)))


def _limit(view: GraphView, node: NodeProto, index: int, name: str) -> float:
    if len(node.input) > index and view.is_weight(node.input[index]):
        return float(view.weight(node.input[index]).reshape(-1)[0])
    return attr_float(node, name, math.nan)


def _product(view: GraphView, gate: NodeProto, source: str) -> NodeProto | None:
    """Return the last node of the product of x and its gate."""
    node = only_reader(view, gate.output[0])
    if gate.op_type == "Clip" and scaled_input(view, node, 1 / 6) is not None:
        node = None if node is None else only_reader(view, node.output[0])
    elif gate.op_type == "Clip":
        last = None if node is None else only_reader(view, node.output[0])
        return last if _multiplies(node, source) and scaled_input(view, last, 1 / 6) is not None else None
    return node if _multiplies(node, source) else None


def _multiplies(node: NodeProto | None, source: str) -> bool:
    return node is not None and node.op_type == "Mul" and source in node.input
