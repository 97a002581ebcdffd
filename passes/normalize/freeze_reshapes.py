"""Replace computed target shapes of Reshape by constants where only the batch is free."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, node_key, rewritten, with_input
from onnxfold.graph.tensors import TensorType
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FreezeReshapes(Pass):
    """Replace a computed target shape by a constant one.

    ``x.view(x.size(0), -1)`` exports as Shape, Gather, Concat, Reshape. Shape inference with data propagation
    knows the result. Case 1: one unknown dimension is written as -1. Case 2: of several, those with the symbol that
    the input has at the same place are copied from there, written as 0. Case 3: a known dimension that a constant
    target copies by a 0 is written as a number, because the channels at that place of the input need not be those at
    that place of the result. A constant is what lets channels be followed, and changed, through a Reshape.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewire every such Reshape."""
        if view.input_shapes:
            # The dimensions in view are the user's assumption for the analysis, not the model's.
            assumed = view.input_shapes
            view.assume({})
            try:
                return self.run(view)
            finally:
                view.assume(assumed)
        frozen: dict[str, NodeProto] = {}
        known: dict[str, TensorType] = {}
        for node in view.nodes:
            if node.op_type != "Reshape" or node.domain not in ("", "ai.onnx"):
                continue
            target = _target_of_sizes(view, node) if view.is_weight(node.input[1]) else _target(view, node)
            if target is not None:
                shape = view.add_weight(f"{node.output[0]}_shape", np.array(target, np.int64))
                frozen[node_key(node)] = rewritten(with_input(node, 1, shape), without=["allowzero"])
                result = node.output[0]
                if any(view.symbols(result)):  # which would be lost with the computation
                    known[result] = view.elem_type(result), view.shape(result) or (), view.symbols(result)
        view.learn(known)
        return PassResult(view.substitute(frozen))


def _target(view: GraphView, node: NodeProto) -> list[int] | None:
    """Return the numbers that say the same as a computed target shape, if there are such."""
    shape = view.shape(node.output[0])
    if shape is None or 0 in shape:
        return None
    target = [-1 if d is None else d for d in shape]
    if target.count(-1) > 1:
        places = zip(view.symbols(node.input[0]), view.symbols(node.output[0]), strict=False)
        for axis, (before, after) in enumerate(places):
            if before and before == after:
                target[axis] = 0
    return target if target.count(-1) <= 1 else None


def _target_of_sizes(view: GraphView, node: NodeProto) -> list[int] | None:
    """Return a constant target with known dimensions in place of zeros, None if that changes nothing."""
    shape = view.shape(node.output[0])
    if shape is None or attr_int(node, "allowzero", 0):
        return None
    old = [int(d) for d in view.weight(node.input[1])]
    new = [size if d == 0 and size else d for d, size in zip(old, shape, strict=True)]
    return new if new != old else None
