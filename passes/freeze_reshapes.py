"""Write target shapes of Reshape as constants where they are known but for the batch."""

from dataclasses import dataclass

import numpy as np

from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FreezeReshapes(Pass):
    """Replace a computed target shape by a constant one with at most one -1.

    ``x.view(x.size(0), -1)`` exports as Shape, Gather, Concat, Reshape. Shape inference with data propagation
    knows the result; at most one unknown dimension can be written as -1. A constant is what lets channels be
    followed, and changed, through a Reshape.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewire every such Reshape."""
        if view.input_shapes:
            # The dimensions in view are the user's assumption for the analysis, not the model's.
            assumed, view.input_shapes = view.input_shapes, {}
            view.touch()
            try:
                return self.run(view)
            finally:
                view.input_shapes = assumed
                view.touch()
        frozen: dict[str, list[int]] = {}
        for node in view.nodes:
            if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx") or view.is_weight(node.input[1]):
                continue
            shape = view.shape(node.output[0])
            if shape is None or sum(d is None for d in shape) > 1 or 0 in shape:
                continue
            frozen[node.output[0]] = [-1 if d is None else d for d in shape]
        for node in view.graph.node:
            if node.output[0] in frozen and node.op_type == "Reshape":
                values = np.array(frozen[node.output[0]], np.int64)
                node.input[1] = view.add_weight(f"{node.output[0]}_shape", values)
        if frozen:
            view.touch()
        return PassResult(modified=bool(frozen))
