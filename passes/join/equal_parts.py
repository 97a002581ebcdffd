"""Write convolutions whose weights are zero outside of equal blocks as grouped ones."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, node_key, rewritten
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class BlocksToGroups(Pass):
    """Leave out the zeros of a convolution that reads its channels in equal blocks.

    Case 1: one group, and all weights between the j-th of `parts` equal parts of the outputs and another part than the
    j-th of the inputs are zero. Weights that several nodes read stay.
    """

    parts: int  # number of parts: of networks beside each other

    def run(self, view: GraphView) -> PassResult:
        """Rewrite all there are."""
        made: dict[str, NodeProto] = {}
        for node in view.nodes:
            if node.op_type != "Conv" or node.domain not in DEFAULT_DOMAINS or attr_int(node, "group", 1) != 1:
                continue
            weight = node.input[1]
            if not view.is_weight(weight) or len(view.consumers(weight)) > 1:
                continue
            blocks = self._blocks(view.weight(weight))
            if blocks is not None:
                view.set_weight(weight, blocks)
                made[node_key(node)] = rewritten(node, attributes={"group": self.parts})
        changed = view.substitute(made)
        if changed:
            view.drop_inferable_infos()
        return PassResult(changed)

    def _blocks(self, values: Array) -> Array | None:
        """Return the blocks, one below the other; None where there is anything outside of them."""
        outputs, inputs = values.shape[:2]
        if self.parts < 2 or outputs % self.parts or inputs % self.parts:
            return None
        cut = values.reshape(self.parts, outputs // self.parts, self.parts, inputs // self.parts, *values.shape[2:])
        inside = [cut[j, :, j] for j in range(self.parts)]
        if any(np.any(cut[j, :, i]) for j in range(self.parts) for i in range(self.parts) if i != j):
            return None
        return np.concatenate(inside)
