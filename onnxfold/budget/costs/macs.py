"""Multiply-accumulate operations per sample."""

from collections.abc import Iterator
from math import prod

from onnxfold.budget.costs.lengths import FoldedAxes, Graphs, Length, Product, SumCost, group_count, number_groups
from onnxfold.budget.costs.shapes import BatchOfOne, common_batch, graphs_of
from onnxfold.budget.costs.weights import used_nodes
from onnxfold.channels.layers import linear
from onnxfold.channels.operators import Lengths
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.quantized import multiplies_integers
from onnxfold.graph.view import GraphView


class MacsCost(SumCost):
    """Multiply-accumulates per sample as a function of the groups' widths.

    Counted are linear operators (Conv, ConvTranspose, Gemm, MatMul and their like), products of two activations
    included, padding as if it were computed. Open leading dimensions count as one; a batch that the model fixes is
    divided out. Of control flow, every body counts once.
    """

    def __init__(self, graphs: Graphs) -> None:
        products = [p for view, axes in number_groups(graphs) for p in _products(view, axes)]
        super().__init__(products, group_count(graphs), divisor=common_batch(graphs[0][0]))


def count_macs(view: GraphView) -> int | None:
    """Return the multiply-accumulates per sample, see :class:`MacsCost`; None where a dimension is unknown."""
    try:
        return MacsCost([(graph, []) for graph in graphs_of(view)])([])
    except UnsupportedModelError:
        return None


def count_token_macs(view: GraphView) -> int:
    """Return the multiply-accumulates per token: the entries of all matrices that tokens are multiplied by.

    Products of activations with each other, which grow with the length of a text, are not counted.
    """
    matrices: set[str] = set()
    for node in view.nodes:
        if linear(view, node) is not None or multiplies_integers(node):
            matrices.update(_matrix(view, name) for name in node.input)
    return sum(prod(view.weights[name].shape) for name in matrices - {""})


def _matrix(view: GraphView, name: str) -> str:
    """Return the weight that a node reads as a matrix, through the nodes that reorder it; '' if it reads none."""
    while name and not view.is_weight(name):
        node = view.producer(name)
        if node is None or node.op_type not in ("Transpose", "Cast", "DequantizeLinear", "Identity"):
            return ""
        name = node.input[0]
    return name if name and len(view.weights[name].shape) >= 2 else ""


def _products(view: GraphView, axes: FoldedAxes) -> Iterator[Product]:
    sizes = BatchOfOne(view)
    for node in used_nodes(view):
        operator = linear(view, node)
        if operator is not None:
            lengths = [length for part in operator.products for length in axis_lengths(sizes, axes, part)]
            yield Product.of(axes.drop_spare(operator.weight, lengths))


def axis_lengths(sizes: BatchOfOne, axes: FoldedAxes, part: Lengths) -> list[Length]:
    """Return the lengths of the axes that a part of an operator's declaration names."""
    return axes.lengths(part.tensor, sizes.shape(part.tensor, any_leading=True))[part.start : part.stop]
