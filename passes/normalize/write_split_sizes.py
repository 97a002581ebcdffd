"""Write the sizes of Split nodes that omit them."""

from dataclasses import dataclass

import numpy as np

from onnxfold.graph.nodes import attr_int, attribute
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
        modified = False
        as_input = view.opset() >= _SIZES_AS_INPUT
        for node in view.graph.node:
            if node.op_type != "Split" or node.domain not in ("", "ai.onnx"):
                continue
            if (len(node.input) > 1 and node.input[1]) or attribute(node, "split") is not None:
                continue
            axis = attr_int(node, "axis", 0)
            shapes = [view.shape(y) for y in node.output]
            sizes = [None if s is None else s[axis] for s in shapes]
            if any(size is None for size in sizes):
                continue
            kept = [a for a in node.attribute if a.name != "num_outputs"]
            if as_input:
                del node.attribute[:]
                node.attribute.extend(kept)
                del node.input[1:]
                node.input.append(view.add_weight(f"{node.output[0]}_split", np.array(sizes, np.int64)))
            else:
                node.attribute.add(name="split", type=7, ints=[int(size or 0) for size in sizes])
            modified = True
        if modified:
            view.touch()
        return PassResult(modified)
