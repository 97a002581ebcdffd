"""One form for what different exporters write in different ways."""

from dataclasses import dataclass
from math import prod

from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_int, attr_ints, rewritten
from onnxfold.graph.patterns import Match, Mismatch, Op
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pipeline
from onnxfold.passes.rewrite import Rewrite


@dataclass(frozen=True)
class ViewsToFlatten(Rewrite):
    """Write a Reshape or Squeeze that only joins all axes behind the batch as a Flatten."""

    patterns = (Op("Reshape|Squeeze"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the Flatten."""
        (node,) = match.nodes
        before, after = view.shape(node.input[0]) or (), view.shape(node.output[0]) or ()
        if len(after) != 2 or len(before) < 2 or None in before[1:] or after[1] != prod(d or 0 for d in before[1:]):
            raise Mismatch("it does not join all axes behind the batch")
        flat = helper.make_node("Flatten", node.input[:1], node.output, name=node.name)
        return [rewritten(flat, attributes={"axis": 1})]


@dataclass(frozen=True)
class MeansToPooling(Rewrite):
    """Write a ReduceMean over all axes behind the channels as a GlobalAveragePool, and a Flatten if they vanish."""

    patterns = (Op("ReduceMean"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the pooling, and what drops the axes of one position."""
        (node,) = match.nodes
        rank = len(view.shape(node.input[0]) or ())
        if rank < 3 or _axes(view, node, rank) != set(range(2, rank)):
            raise Mismatch("it does not reduce all axes behind the channels")
        if attr_int(node, "keepdims", 1):
            return [helper.make_node("GlobalAveragePool", node.input[:1], node.output, name=node.name)]
        pooled = view.fresh_name(f"{node.output[0]}_pooled")
        return [
            helper.make_node("GlobalAveragePool", node.input[:1], [pooled], name=node.name),
            helper.make_node("Flatten", [pooled], node.output, name=f"{node.name}_flat", axis=1),
        ]


def _axes(view: GraphView, node: NodeProto, rank: int) -> set[int]:
    """Return the axes that a ReduceMean with constant axes reduces; none where they are not known."""
    axes = attr_ints(node, "axes")
    if len(node.input) > 1 and node.input[1]:
        axes = view.weight(node.input[1]).reshape(-1).tolist() if view.is_weight(node.input[1]) else []
    return {int(axis) % rank for axis in axes}


#: Behind the normal form, for networks that are compared with each other.
COMMON_FORM = Pipeline((MeansToPooling(), ViewsToFlatten()))
