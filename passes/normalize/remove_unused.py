"""Remove nodes and weights that no output depends on."""

from dataclasses import dataclass

from onnxfold.graph.nodes import captured_names
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class RemoveUnused(Pass):
    """Drop nodes without a path to an output, and initializers that nobody reads; inputs stay."""

    def run(self, view: GraphView) -> PassResult:
        """Walk backwards once."""
        needed = set(view.output_names)
        kept = []
        for node in reversed(view.nodes):
            if any(o in needed for o in node.output):
                needed.update(filter(None, [*node.input, *captured_names(node)]))
                kept.append(node)
        modified = len(kept) != len(view.graph.node)
        if modified:
            view.replace_nodes(reversed(kept))
        # Sparse initializers and quantisation annotations name weights too; they are left alone.
        needed |= {a.value for q in view.graph.quantization_annotation for a in q.quant_parameter_tensor_names}
        unused = [name for name in view.weights if name not in needed]
        for name in unused:
            del view.weights[name]
        names = {o for node in view.graph.node for o in node.output} | {i.name for i in view.graph.input}
        known = [info for info in view.graph.value_info if info.name in names]
        if len(known) != len(view.graph.value_info):
            del view.graph.value_info[:]
            view.graph.value_info.extend(known)
        return PassResult(modified=modified or bool(unused))
