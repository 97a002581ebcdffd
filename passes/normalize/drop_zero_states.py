"""Drop initial states of recurrences that are zero."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfold.graph.nodes import attribute, node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: Initial hidden and cell state.
_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
#: Operators whose result is zero where their first input is.
_PASS_ZEROS = frozenset({"Cast", "Expand", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze"})


@dataclass(frozen=True)
class DropZeroStates(Pass):
    """Leave out initial states of LSTM, GRU and RNN that are zero, which is what they are where none is given.

    torch writes zeros of a size that is computed from the batch. Their width would hold the hidden units.
    """

    def run(self, view: GraphView) -> PassResult:
        """Cut the inputs; what computed them goes with what is unused."""
        without: dict[str, NodeProto] = {}
        for node in view.nodes:
            states = _STATES.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
            zero = [i for i in states if i < len(node.input) and node.input[i] and _is_zero(view, node.input[i])]
            if zero:
                inputs = ["" if i in zero else name for i, name in enumerate(node.input)]
                while not inputs[-1]:
                    inputs.pop()
                without[node_key(node)] = rewritten(node, inputs=inputs)
        return PassResult(view.substitute(without))


def _is_zero(view: GraphView, tensor: str) -> bool:
    """Whether a tensor holds nothing but zeros, however large it is."""
    while not view.is_weight(tensor):
        node = view.producer(tensor)
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type == "ConstantOfShape":
            value = attribute(node, "value")
            return not isinstance(value, TensorProto) or not np.any(numpy_helper.to_array(value))
        if node.op_type not in _PASS_ZEROS:
            return False
        tensor = node.input[0]
    return not np.any(view.weight(tensor))
