"""Remove nodes and weights that no output depends on."""

from dataclasses import dataclass

from onnxfold.graph.nodes import captured_names, node_key
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class RemoveUnused(Pass):
    """Drop nodes without a path to an output, and initializers without a reader; inputs stay."""

    def run(self, view: GraphView) -> PassResult:
        """Walk backwards once."""
        needed = set(view.output_names)
        lost = set()
        for node in reversed(view.nodes):
            if any(o in needed for o in node.output):
                needed.update(filter(None, [*node.input, *captured_names(node)]))
            else:
                lost.add(node_key(node))
        modified = view.substitute({}, removed=lost)
        # Sparse initializers and quantisation annotations name weights too; they stay.
        needed |= {a.value for q in view.graph.quantization_annotation for a in q.quant_parameter_tensor_names}
        unused = [name for name in view.weights if name not in needed]
        view.remove_weights(unused)
        view.drop_lost_infos()
        return PassResult(modified=modified or bool(unused))
