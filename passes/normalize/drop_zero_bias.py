"""Drop biases that are zero."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, defs

from onnxfold.graph.nodes import node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

_BIAS_INPUT = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2}


@dataclass(frozen=True)
class DropZeroBias(Pass):
    """Remove the optional bias input of linear operators where it is a constant zero.

    The unoptimised dynamo export computes such biases (Expand of 0); as constants they would be new
    weights that the network does not need.
    """

    def run(self, view: GraphView) -> PassResult:
        """Cut the input; the initializer goes with the unused ones."""
        without: dict[str, NodeProto] = {}
        for node in view.nodes:
            index = _BIAS_INPUT.get(node.op_type, -1) if node.domain in ("", "ai.onnx") else -1
            bias = node.input[index] if 0 <= index < len(node.input) else ""
            if view.is_weight(bias) and _is_optional(view, node, index) and not np.any(view.weight(bias)):
                without[node_key(node)] = rewritten(node, inputs=node.input[:index])
        return PassResult(view.substitute(without))


def _is_optional(view: GraphView, node: NodeProto, index: int) -> bool:
    """Whether the operator does without an input in this operator set; before 11 Gemm does not."""
    return bool(defs.get_schema(node.op_type, view.opset(), "").min_input <= index)
