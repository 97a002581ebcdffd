"""The cost model of weights: parameters as a function of widths, without folding."""

import numpy as np
from onnx import GraphProto, NodeProto

from onnxfold.budget.costs.lengths import Graphs, Product, SumCost, group_count, number_groups
from onnxfold.graph.nodes import captured_names, subgraphs
from onnxfold.graph.quantized import dequantized_tensors, scales
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView


class WeightCost(SumCost):
    """Parameters as a function of the groups' widths.

    Copies that normalisation made of shared vectors count, although equal ones are shared again after the fold.
    """

    def __init__(self, graphs: Graphs) -> None:
        products = [
            Product.of(axes.lengths(name, view.weights[name].shape))
            for view, axes in number_groups(graphs)
            for name in weight_names(view)
        ]
        super().__init__(products, group_count(graphs))


def used_nodes(view: GraphView) -> list[NodeProto]:
    """Return the nodes that an output depends on, in the order of the graph."""
    needed, used = set(view.output_names), []
    for node in reversed(view.nodes):
        if any(o in needed for o in node.output):
            needed.update(filter(None, [*node.input, *captured_names(node)]))
            used.append(node)
    return used[::-1]


def weight_names(view: GraphView) -> list[str]:
    """Return the initializers that are weights: floats, and integers that a DequantizeLinear makes floats of.

    The scales of quantised tensors are none.
    """
    integers, no_weights = dequantized_tensors(view.nodes), scales(view.nodes)
    return [n for n in view.weights if n in integers or (is_float(view.weight_type(n)) and n not in no_weights)]


def count_parameters(view: GraphView) -> int:
    """Return the number of weights a model really uses.

    Float initializers and Constant nodes that an output depends on, those of subgraphs included, each
    counted once. Integers behind a DequantizeLinear count as the floats that they stand for, their scales do not:
    quantised, a model has as many weights as before.
    """
    needed, total = set(view.output_names), 0
    for node in used_nodes(view):
        needed.update(filter(None, [*node.input, *captured_names(node)]))
        total += _constant_size(node)
        total += sum(_graph_parameters(body) for body in subgraphs(node))
    for function in view.model.functions:
        total += sum(_constant_size(node) for node in function.node)
    return total + sum(view.weight_size(n) for n in weight_names(view) if n in needed)


def _graph_parameters(graph: GraphProto) -> int:
    integers, no_weights = dequantized_tensors(graph.node), scales(graph.node)
    counted = (
        t for t in graph.initializer
        if t.name in integers or (is_float(t.data_type) and t.name not in no_weights)
    )  # fmt: skip
    total = sum(int(np.prod(t.dims, dtype=np.int64)) for t in counted)
    for node in graph.node:
        total += _constant_size(node) + sum(_graph_parameters(body) for body in subgraphs(node))
    return total


def _constant_size(node: NodeProto) -> int:
    if node.op_type != "Constant":
        return 0
    for attr in node.attribute:
        if attr.name == "value" and is_float(attr.t.data_type):
            return int(np.prod(attr.t.dims, dtype=np.int64))
        if attr.name in ("value_float", "value_floats"):
            return max(1, len(attr.floats))
    return 0
