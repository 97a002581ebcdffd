"""One form for what different exporters write in different ways."""

from dataclasses import dataclass
from math import prod

from onnx import NodeProto, helper

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, attr_ints, node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult, Pipeline

_VIEWS = ("Reshape", "Squeeze")


@dataclass(frozen=True)
class ViewsToFlatten(Pass):
    """Write a Reshape or Squeeze that only joins all axes behind the batch as a Flatten."""

    def run(self, view: GraphView) -> PassResult:
        """Replace every such node."""
        replacements = {
            node_key(node): rewritten(
                helper.make_node("Flatten", node.input[:1], node.output, name=node.name), attributes={"axis": 1}
            )
            for node in view.nodes
            if node.op_type in _VIEWS and node.domain in DEFAULT_DOMAINS and _flattens(view, node)
        }
        return PassResult(view.substitute(replacements))


def _flattens(view: GraphView, node: NodeProto) -> bool:
    before, after = view.shape(node.input[0]), view.shape(node.output[0])
    if before is None or after is None or len(after) != 2 or len(before) < 2 or None in before[1:]:
        return False
    return after[1] == prod(d or 0 for d in before[1:])


@dataclass(frozen=True)
class MeansToPooling(Pass):
    """Write a ReduceMean over all axes behind the channels as a GlobalAveragePool, and a Flatten if they vanish."""

    def run(self, view: GraphView) -> PassResult:
        """Replace every such node."""
        nodes: list[NodeProto] = []
        changed = False
        for node in view.nodes:
            rank = len(view.shape(node.input[0]) or ()) if node.op_type == "ReduceMean" else 0
            if rank < 3 or node.domain not in DEFAULT_DOMAINS or _axes(view, node, rank) != set(range(2, rank)):
                nodes.append(node)
                continue
            changed = True
            if attr_int(node, "keepdims", 1):
                nodes.append(helper.make_node("GlobalAveragePool", node.input[:1], node.output, name=node.name))
                continue
            pooled = view.fresh_name(f"{node.output[0]}_pooled")
            nodes.append(helper.make_node("GlobalAveragePool", node.input[:1], [pooled], name=node.name))
            nodes.append(helper.make_node("Flatten", [pooled], node.output, name=f"{node.name}_flat", axis=1))
        if changed:
            view.replace_nodes(nodes)
        return PassResult(changed)


def _axes(view: GraphView, node: NodeProto, rank: int) -> set[int]:
    """Return the axes that a ReduceMean with constant axes reduces; none where they are not known."""
    axes = attr_ints(node, "axes")
    if len(node.input) > 1 and node.input[1]:
        axes = view.weight(node.input[1]).reshape(-1).tolist() if view.is_weight(node.input[1]) else []
    return {int(axis) % rank for axis in axes}


#: Behind the normal form, for networks that are compared with each other.
COMMON_FORM = Pipeline((MeansToPooling(), ViewsToFlatten()))
