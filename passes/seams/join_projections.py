"""Write projections of queries, and of keys and values, as one product where both are plain."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.language.projections import Projection, head_counts, projection
from onnxfold.passes.base import Pass, PassResult

_PAIR = 2


@dataclass(frozen=True)
class JoinProjections(Pass):
    """Undo :mod:`passes.normalize.split_projections`.

    Case 1: GroupQueryAttention whose queries are x W_q, and whose keys and values are the halves of x W of the same x,
    both with a bias or both without. It reads x [W_q, W] then. Queries that became a product of two factors stay.
    """

    def run(self, view: GraphView) -> PassResult:
        """Join the projections of every such node."""
        made: dict[str, list[NodeProto]] = {}
        for node in view.nodes:
            projections = _parts(view, node)
            if projections is not None:
                queries, others, split = projections
                made |= {node_key(old): [] for old in (*queries.nodes, *others.nodes, split)}
                made[node_key(node)] = _join(view, queries, others, node)
        if made:
            view.replace_nodes(new for n in view.nodes for new in made.get(node_key(n), [n]))
            view.drop_inferable_infos()
        return PassResult(bool(made))


def _parts(view: GraphView, node: NodeProto) -> tuple[Projection, Projection, NodeProto] | None:
    """Return the projections of queries and of all others, and the Split of these."""
    if node.op_type != "GroupQueryAttention" or not all(node.input[1:3]):
        return None
    split = view.producer(node.input[1])
    if split is None or split.op_type != "Split" or list(split.output) != list(node.input[1:3]):
        return None
    if attr_int(split, "axis", 0) not in (-1, len(view.shape(split.input[0]) or ()) - 1):
        return None
    if any(len(view.consumers(name)) != 1 or name in view.output_names for name in split.output):
        return None
    queries, others = projection(view, node.input[0]), projection(view, split.input[0])
    if queries is None or others is None or queries.product.input[0] != others.product.input[0]:
        return None
    (_, own), (_, rest) = (view.weights[part.weight].shape for part in (queries, others))
    counts = head_counts(node)
    are_alike = min(counts) > 0 and own * _PAIR * counts[1] == rest * counts[0]
    same_types = view.weight_type(queries.weight) == view.weight_type(others.weight)
    is_biased = [part.shift is not None for part in (queries, others)]
    return (queries, others, split) if are_alike and same_types and len(set(is_biased)) == 1 else None


def _join(view: GraphView, queries: Projection, others: Projection, node: NodeProto) -> list[NodeProto]:
    """Return the nodes in place of both projections, and of the attention that reads them."""
    for query_name, other_name in ((queries.weight, others.weight), (queries.bias(view), others.bias(view))):
        if query_name:
            view.set_weight(query_name, np.concatenate([view.weight(query_name), view.weight(other_name)], axis=-1))
    return [*queries.nodes, rewritten(node, inputs=[queries.result, "", "", *node.input[3:]])]
