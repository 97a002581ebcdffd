"""Remove products by identity matrices."""

from dataclasses import dataclass

from onnxfold.channels.constraints.rotations import is_identity
from onnxfold.graph.nodes import captured_names
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class DropIdentityProducts(Pass):
    """Route readers of X I straight to X.

    Case 1: MatMul whose second operand is a weight that is the identity matrix: what
    :mod:`passes.normalize.factor_tables` wrote where the table kept its width. A product that writes an output of the
    graph, or that a body reads, stays; the matrix goes with the unused weights.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename inputs in one sweep."""
        fixed = {*view.output_names, *(name for node in view.nodes for name in captured_names(node))}
        renamed: dict[str, str] = {}
        for node in view.nodes:
            is_product = node.op_type == "MatMul" and node.domain in ("", "ai.onnx") and view.is_weight(node.input[1])
            if is_product and node.output[0] not in fixed and is_identity(view, node.input[1]):
                renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
        view.rename_inputs(renamed)
        return PassResult(view.substitute({}, removed=renamed))
