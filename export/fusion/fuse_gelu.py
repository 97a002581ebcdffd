"""Fuse the arithmetic around Erf, from exporters below operator set 20, into Gelu."""

import math
from dataclasses import dataclass

from onnx import NodeProto, helper

from onnxfold.export.fusion.scalar_factors import constant, scaled_input
from onnxfold.graph.patterns import chain, only_reader
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FuseGelu(Pass):
    """Replace 0.5 x (1 + erf(x / sqrt(2))) by Gelu.

    Case 1: (x (erf + 1)) 0.5. Case 2: x ((erf + 1) 0.5) and (0.5 x) (erf + 1). x / sqrt(2) may be a Div or a Mul.
    Nobody else may read what lies in between.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match."""
        replacements: dict[str, NodeProto] = {}
        for node in view.nodes:
            if node.op_type == "Erf":
                match = _match(view, node)
                if match is not None:
                    source, result = match
                    replacements[result] = helper.make_node("Gelu", [source], [result], name=node.name)
        return PassResult(view.substitute(replacements))


def _match(view: GraphView, erf: NodeProto) -> tuple[str, str] | None:
    source = scaled_input(view, view.producer(erf.input[0]), 1 / math.sqrt(2))
    match = chain(view, erf, "Erf", "Add", "Mul")
    if source is None or match is None or constant(view, match[1]) != 1.0:
        return None
    _, plus, tail = match
    other = next(n for n in (*tail.input, "") if n != plus.output[0])
    if constant(view, tail) == 0.5:  # x ((erf + 1) 0.5)
        last = only_reader(view, tail.output[0])
        return (source, last.output[0]) if last is not None and last.op_type == "Mul" and source in last.input else None
    if other == source:  # (x (erf + 1)) 0.5
        last = only_reader(view, tail.output[0])
        halves = last is not None and (
            (last.op_type == "Mul" and constant(view, last) == 0.5)
            or (last.op_type == "Div" and constant(view, last) == 2.0 and view.is_weight(last.input[1]))
        )
        return (source, last.output[0]) if halves and last is not None else None
    half = view.producer(other)
    if half is not None and scaled_input(view, half, 0.5) == source:  # (0.5 x) (erf + 1)
        return source, tail.output[0]
    return None
