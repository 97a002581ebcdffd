"""Turn every constant into an initializer that is no graph input."""

from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, NodeProto

from onnxfold.graph.tensors import Array, LazyTensor
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class LiftConstants(Pass):
    """Turn Constant nodes into initializers and take initializers off the list of graph inputs.

    Case 1: ``Constant`` with a dense value. Case 2: an initializer listed as graph input, which old
    exporters write; a caller could override it, which would undo the fold, so it becomes a plain weight.
    """

    def run(self, view: GraphView) -> PassResult:
        """Lift what can be lifted."""
        constants = {n.output[0]: v for n in view.nodes if (v := _constant_value(n)) is not None}
        view.put_weights(constants)
        modified = view.substitute({}, removed=constants)
        return PassResult(view.unlist_weights() or modified)


def _constant_value(node: NodeProto) -> LazyTensor | Array | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or len(node.attribute) != 1:
        return None
    attr: AttributeProto = node.attribute[0]
    if attr.name == "value":
        return LazyTensor(attr.t)
    if attr.name in ("value_float", "value_floats"):
        return np.array(attr.f if attr.name == "value_float" else list(attr.floats), np.float32)
    if attr.name in ("value_int", "value_ints"):
        return np.array(attr.i if attr.name == "value_int" else list(attr.ints), np.int64)
    return None
