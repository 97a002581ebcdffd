"""Fuse the arithmetic of activations, from exporters of early operator sets, into their operators."""

import math
from dataclasses import dataclass

from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_float
from onnxfold.graph.patterns import Match, Mismatch, Op, scaled
from onnxfold.graph.view import GraphView
from onnxfold.passes.rewrite import Rewrite

_ERF_PLUS_1 = Op("Add", (Op("Erf", (scaled("x", 1 / math.sqrt(2)),)), 1.0))
_CLIP_PLUS_3 = Op("Clip", (Op("Add", ("x", 3.0)),))


@dataclass(frozen=True)
class FuseGelu(Rewrite):
    """Replace 0.5 x (1 + erf(x / sqrt(2))), in any order of the factors, by Gelu.

    Quotients may be written as products. Nobody else may read what lies in between.
    """

    patterns = (
        *scaled(Op("Mul", ("x", _ERF_PLUS_1)), 0.5),
        Op("Mul", ("x", scaled(_ERF_PLUS_1, 0.5))),
        Op("Mul", (scaled("x", 0.5), _ERF_PLUS_1)),
    )

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a Gelu."""
        erf = next(node for node in match.nodes if node.op_type == "Erf")
        return [helper.make_node("Gelu", [match.tensors["x"]], [match.nodes[-1].output[0]], name=erf.name)]


@dataclass(frozen=True)
class FuseHardSwish(Rewrite):
    """Replace x HardSigmoid(x), and x min(max(x + 3, 0), 6) / 6, by HardSwish.

    In int8 every step more is a rounding more. Case 1: (x clip) / 6. Case 2: x (clip / 6). / 6 may be a Div or a Mul.
    Nobody else may read what lies in between.
    """

    patterns = (
        *scaled(Op("Mul", ("x", _CLIP_PLUS_3)), 1 / 6),
        Op("Mul", ("x", scaled(_CLIP_PLUS_3, 1 / 6))),
        Op("Mul", ("x", Op("HardSigmoid", ("x",)))),
    )

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a HardSwish, if the gate is cut at the right numbers."""
        gate = next(node for node in match.nodes if node.op_type in ("Clip", "HardSigmoid"))
        if gate.op_type == "Clip":
            limits = [_limit(view, gate, 1, "min"), _limit(view, gate, 2, "max")]
            if limits != [0.0, 6.0]:
                raise Mismatch(f"it is cut at {limits}")
        elif (
            not math.isclose(attr_float(gate, "alpha", 0.2), 1 / 6, rel_tol=1e-4)
            or attr_float(gate, "beta", 0.5) != 0.5
        ):
            raise Mismatch("its slope is not a sixth, or its middle not a half")
        last = match.nodes[-1]
        return [helper.make_node("HardSwish", [match.tensors["x"]], [last.output[0]], name=last.name)]


def _limit(view: GraphView, node: NodeProto, index: int, name: str) -> float:
    if len(node.input) > index and view.is_weight(node.input[index]):
        return float(view.weight(node.input[index]).reshape(-1)[0])
    return attr_float(node, name, math.nan)
