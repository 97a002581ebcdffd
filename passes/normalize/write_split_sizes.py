"""Write the sizes of Split nodes that omit them."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, attribute, node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: From this operator set on the sizes are an input.
_SIZES_AS_INPUT = 13


@dataclass(frozen=True)
class WriteSplitSizes(Pass):
    """Give every Split explicit sizes where the shapes are known.

    Without them a Split cuts into equal parts; parts of a folded axis need not be equal.
    """

    def run(self, view: GraphView) -> PassResult:
        """Add the attribute or the input."""
        written: dict[str, NodeProto] = {}
        as_input = view.opset() >= _SIZES_AS_INPUT
        for node in view.nodes:
            if node.op_type != "Split" or node.domain not in ("", "ai.onnx"):
                continue
            if (len(node.input) > 1 and node.input[1]) or attribute(node, "split") is not None:
                continue
            axis = attr_int(node, "axis", 0)
            shapes = [view.shape(y) for y in node.output]
            sizes = [None if s is None else s[axis] for s in shapes]
            if any(size is None for size in sizes):
                continue
            if as_input:
                split = view.add_weight(f"{node.output[0]}_split", np.array(sizes, np.int64))
                made = rewritten(node, inputs=[node.input[0], split], without=["num_outputs"])
            else:
                made = rewritten(node, attributes={"split": sizes})
            written[node_key(node)] = made
        return PassResult(view.substitute(written))
