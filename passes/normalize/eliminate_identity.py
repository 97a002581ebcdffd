"""Remove nodes that change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnx import NodeProto

from onnxfold.graph.nodes import subgraphs
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class EliminateIdentity(Pass):
    """Route readers of Identity and inference-mode Dropout straight to its input.

    Case 1: an initializer routed through Identity (deduplicated weights in exported models). Case 2: Identity
    between activations. Case 3: Dropout without a mask that anybody reads. A node that writes a graph output, or
    whose value a subgraph reads by name, stays.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rename inputs in one sweep."""
        fixed = set(view.output_names)
        for node in view.nodes:
            if any(True for _ in subgraphs(node)):
                fixed.update(n for n in node.output)
                fixed.update(name for name in _all_inner_names(node))
        renamed: dict[str, str] = {}
        for node in view.nodes:
            inputs = [renamed.get(name, name) for name in node.input]
            if _is_identity(view, node, inputs) and node.output[0] not in fixed:
                renamed[node.output[0]] = inputs[0]
        view.rename_inputs(renamed)
        return PassResult(view.substitute({}, removed=renamed))


def _is_identity(view: GraphView, node: NodeProto, inputs: Sequence[str]) -> bool:
    """Whether a node, with these inputs, passes on the first of them."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or any(view.consumers(o) for o in node.output[1:]):
        return False
    if any(o in view.output_names for o in node.output[1:]):
        return False
    training = inputs[2] if len(inputs) > 2 else ""
    return not training or (view.is_weight(training) and not bool(view.weight(training).reshape(-1)[0]))


def _all_inner_names(node: NodeProto) -> set[str]:
    names: set[str] = set()
    for graph in subgraphs(node):
        names.update(o.name for o in graph.output)
        for inner in graph.node:
            names.update(inner.input)
            names |= _all_inner_names(inner)
    return names
