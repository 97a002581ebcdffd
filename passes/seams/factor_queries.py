"""Write a product by the identity matrix in front of projections of queries."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import node_key, with_input
from onnxfold.graph.patterns import multiplies_weight
from onnxfold.graph.view import GraphView
from onnxfold.language.projections import have_room, query_products
from onnxfold.passes.base import Pass, PassResult


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
        made = {node_key(node): _factor(view, node) for node in projections}
        view.replace_nodes(new for node in view.nodes for new in made.get(node_key(node), [node]))
        return PassResult(modified=True)


def is_written(view: GraphView, weight: str, only: frozenset[str] | None) -> bool:
    """Whether the matrix in front of a weight is among those that are written."""
    return only is None or view.fresh_name(f"{weight}_basis") in only


def _factor(view: GraphView, node: NodeProto) -> list[NodeProto]:
    """Return the product by an identity matrix, and the one that reads it."""
    weight = node.input[1]
    dtype = helper.tensor_dtype_to_np_dtype(view.weight_type(weight))
    basis = view.add_weight(f"{weight}_basis", np.eye(view.weights[weight].shape[0], dtype=dtype))
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
