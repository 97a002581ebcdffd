"""Write a product by the identity matrix in front of projections of queries."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key, rewritten, with_input
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.view import GraphView
from onnxfold.language.projections import Projection, have_room, head_counts, packed_projection, query_products
from onnxfold.passes.base import Pass, PassResult
from onnxfold.passes.seams.tables import identity, is_written


@dataclass(frozen=True)
class FactorQueries(Pass):
    """Let queries be computed of fewer numbers than they are: x W becomes (x I) W.

    Case 1: a MatMul whose result becomes the queries of attention with a cache
    (:func:`onnxfold.language.projections.query_products`), where two products with narrower weights can be smaller than
    one. What is cached keeps the sizes of heads, so dimensions inside them stay. Scores are products of queries and
    keys, and suffer little where queries are of low rank. What lies between I and W may be rotated; while it keeps its
    width, there is no need of the product.
    """

    only: frozenset[str] | None = None  # the names of the matrices that are written; all if None

    def run(self, view: GraphView) -> PassResult:
        """Insert one product per projection; none where their bases would take too much memory."""
        projections = [
            node
            for node in query_products(view)
            if _may_be_narrower(view, node) and is_written(view, node.input[1], self.only)
        ]
        if not projections or not have_room(view):
            return PassResult(modified=False)
        return PassResult(view.expand({node_key(node): _factor(view, node) for node in projections}))


def _factor(view: GraphView, node: NodeProto) -> list[NodeProto]:
    """Return the product by an identity matrix, and the one that reads it."""
    weight = node.input[1]
    basis = view.add_weight(f"{weight}_basis", identity(view, weight, view.weights[weight].shape[0]))
    result = view.fresh_name(f"{node.output[0]}_coordinates")
    name = f"{node.name or node.output[0]}_coordinates"
    return [helper.make_node("MatMul", [node.input[0], basis], [result], name), with_input(node, 0, result)]


def _may_be_narrower(view: GraphView, product: NodeProto) -> bool:
    """Whether two factors can be smaller than their product, and it is not one of two already."""
    before, (rows, columns) = view.producer(product.input[0]), view.weights[product.input[1]].shape
    is_factor = before is not None and multiplies_weight(view, before)
    if is_factor and len(view.consumers(product.input[0])) == 1:
        return False
    return rows * columns > rows + columns


#: The opset from which on the sizes of a Split are an input.
_OPSET = 13


@dataclass(frozen=True)
class SplitProjections(Pass):
    """Let queries have a weight of their own.

    Case 1: GroupQueryAttention that reads x [W_q, W_k, W_v], as onnxruntime-genai's builder writes it, perhaps with a
    bias. It reads x W_q, and both parts of x [W_k, W_v], then.
    """

    only: frozenset[str] | None = None  # the names of the matrices that are written in front of W_q; all if None

    def run(self, view: GraphView) -> PassResult:
        """Split the projection of every such node."""
        made: dict[str, list[NodeProto]] = {}
        parts: dict[str, str] = {}
        if view.opset() >= _OPSET and have_room(view):
            for node in view.nodes:
                projection = packed_projection(view, node)
                if projection is not None and is_written(view, projection.weight, self.only):
                    made |= {node_key(old): [] for old in projection.nodes}
                    made[node_key(node)], others = _split(view, projection, node)
                    parts |= dict(zip(others, filter(None, (projection.weight, projection.bias(view))), strict=True))
        if view.expand(made):
            view.drop_inferable_infos()
        return PassResult(bool(made), parts)


def _split(view: GraphView, packed: Projection, node: NodeProto) -> tuple[list[NodeProto], list[str]]:
    """Return the nodes in place of a projection and the attention that reads it, and the weights of keys and values.

    Queries keep the names of the projection.
    """
    queries, keys = head_counts(node)
    columns = view.weights[packed.weight].shape[1]
    own = columns // (queries + 2 * keys) * queries
    others, weights = _others(view, packed, own)
    for name in filter(None, (packed.weight, packed.bias(view))):
        view.set_weight(name, np.ascontiguousarray(view.weight(name)[..., :own]))
    sizes = view.add_weight(f"{packed.weight}_sizes", np.full(2, (columns - own) // 2, np.int64))
    parts = [view.fresh_name(f"{packed.result}_{part}") for part in ("keys", "values")]
    split = helper.make_node("Split", [others[-1].output[0], sizes], parts, parts[0], axis=-1)
    attention = rewritten(node, inputs=[packed.result, *parts, *node.input[3:]])
    return [*packed.nodes, *others, split, attention], weights


def _others(view: GraphView, packed: Projection, start: int) -> tuple[list[NodeProto], list[str]]:
    """Return nodes that write the columns of a projection from one on, and their weights."""
    made: list[NodeProto] = []
    weights: list[str] = []
    source = packed.product.input[0]
    for old, weight in zip(packed.nodes, filter(None, (packed.weight, packed.bias(view))), strict=True):
        name = view.add_weight(f"{weight}_others", np.ascontiguousarray(view.weight(weight)[..., start:]))
        result = view.fresh_name(f"{old.output[0]}_others")
        made.append(rewritten(old, inputs=[name if n == weight else source for n in old.input], outputs=[result]))
        made[-1].name = f"{old.name or old.output[0]}_others"
        source = result
        weights.append(name)
    return made, weights
