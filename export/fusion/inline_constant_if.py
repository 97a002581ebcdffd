"""Put the nodes of an If whose condition is a constant in its place."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnx import GraphProto, NodeProto, helper

from onnxfold.graph.nodes import attribute, node_key, rename_tensors
from onnxfold.graph.tensors import LazyTensor, Weight
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class InlineConstantIf(Pass):
    """Keep the branch that is taken, and the If's inside of it that are decided, too.

    What the branch defines gets names that nothing else has: two branches may use the same ones. Its outputs get the
    names of the If's by way of an Identity.
    """

    def run(self, view: GraphView) -> PassResult:
        """Inline until no If is left whose condition is a weight."""
        modified = False
        while self._step(view):
            modified = True
        return PassResult(modified)

    def _step(self, view: GraphView) -> bool:
        branches = {node_key(node): body for node in view.nodes if (body := _taken(view, node)) is not None}
        if not branches:
            return False
        nodes: list[NodeProto] = []
        used = set(view.weights) | set(view.input_names) | {o for node in view.nodes for o in node.output}
        weights: dict[str, Weight] = {}
        for node in view.nodes:
            body = branches.get(node_key(node))
            if body is None:
                nodes.append(node)
                continue
            names = dict(_new_names(node_key(node), body, used))
            weights.update({names[t.name]: LazyTensor(t) for t in body.initializer})
            nodes += [rename_tensors(inner, names) for inner in body.node]
            for inner_output, output in zip(body.output, node.output, strict=False):
                if output:
                    source = names.get(inner_output.name, inner_output.name)
                    nodes.append(helper.make_node("Identity", [source], [output]))
        view.put_weights(weights)
        view.replace_nodes(nodes)
        return True


def _taken(view: GraphView, node: NodeProto) -> GraphProto | None:
    """Return the branch that an If takes; None where that is decided at run time, or it holds sparse weights."""
    if node.op_type != "If" or node.domain not in ("", "ai.onnx") or not view.is_weight(node.input[0]):
        return None
    body = attribute(node, "then_branch" if view.weight(node.input[0]).any() else "else_branch")
    return body if isinstance(body, GraphProto) and not body.sparse_initializer else None


def _new_names(key: str, body: GraphProto, used: set[str]) -> Iterator[tuple[str, str]]:
    """Yield a new name for everything that a branch defines itself."""
    defined = [t.name for t in body.initializer] + [o for node in body.node for o in node.output if o]
    for name in defined:
        fresh, number = f"{key}/{name}", 1
        while fresh in used:
            fresh, number = f"{key}/{name}_{number}", number + 1
        used.add(fresh)
        yield name, fresh
