"""The branch that an If always takes is written out in its place."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import GraphProto, NodeProto, helper

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attribute, node_key, rename_tensors
from onnxfold.graph.tensors import LazyTensor, Weight
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class TakeBranches(Pass):
    """Replace an If whose condition is constant by the branch that it takes; `simplify` makes conditions constants.

    Exporters write an If where the number of channels, or a length, decides what runs: channels and lengths behind it
    are not known as long as it stands.
    """

    simplify: Pass

    def run(self, view: GraphView) -> PassResult:
        """Go on as long as a branch holds another such If."""
        modified = False
        while taken := {node_key(node): node for node in view.nodes if _is_decided(view, node)}:
            modified = view.expand({key: _branch(view, node) for key, node in taken.items()})
            self.simplify(view)
        return PassResult(modified)


def _is_decided(view: GraphView, node: NodeProto) -> bool:
    is_constant = node.op_type == "If" and node.domain in DEFAULT_DOMAINS and view.is_weight(node.input[0])
    return is_constant and not _body(view, node).sparse_initializer


def _body(view: GraphView, node: NodeProto) -> GraphProto:
    body = attribute(node, "then_branch" if view.weight(node.input[0]).any() else "else_branch")
    assert isinstance(body, GraphProto)
    return body


def _branch(view: GraphView, node: NodeProto) -> list[NodeProto]:
    """Return the nodes of the branch that is taken, under names that are free around it; its weights are added."""
    graph = _body(view, node)
    weights: Mapping[str, Weight] = {t.name: LazyTensor(t) for t in graph.initializer}
    made = [name for inner in graph.node for name in inner.output if name]
    names = {name: view.fresh_name(f"{node_key(node)}/{name}") for name in (*made, *weights)}
    view.put_weights({names[name]: weight for name, weight in weights.items()})
    results = [names.get(info.name, info.name) for info in graph.output]
    pairs = [(x, y) for x, y in zip(results, node.output, strict=True) if y]
    passed = [helper.make_node("Identity", [x], [y], f"{y}_taken") for x, y in pairs]
    return [*(rename_tensors(inner, names) for inner in graph.node), *passed]
