"""Multiply-accumulate operations per sample."""

from collections.abc import Iterator, Sequence

from onnx import NodeProto

from onnxfold.budget.costs.lengths import FoldedAxes, Graphs, Length, Product, SumCost, group_count, numbered
from onnxfold.budget.costs.shapes import BatchOfOne, common_batch, graphs_of
from onnxfold.budget.costs.weights import used_nodes
from onnxfold.channels.layers import LINEAR_OPS
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.nodes import attr_int
from onnxfold.graph.view import GraphView


class MacsCost(SumCost):
    """Multiply-accumulates per sample as a function of the groups' widths.

    Counted are Conv, ConvTranspose, Gemm and MatMul, products of two activations included, padding as if it were
    computed. Open leading dimensions count as one; a batch that the model fixes is divided out. Of control flow, every
    body counts once.

    Parameters
    ----------
    graphs : sequence of (GraphView, sequence of FoldGroup)
        Normalised graphs with the groups whose widths vary; widths are given for all groups in this order.

    Raises
    ------
    UnsupportedModelError
        If the dimensions of a layer are not known.
    """

    def __init__(self, graphs: Graphs) -> None:
        products = [p for view, axes in numbered(graphs) for p in _layers(view, axes)]
        super().__init__(products, group_count(graphs), divisor=common_batch(graphs[0][0]))


def count_macs(view: GraphView) -> int | None:
    """Return the multiply-accumulates per sample, see :class:`MacsCost`; None where a dimension is unknown."""
    try:
        return MacsCost([(graph, []) for graph in graphs_of(view)])([])
    except UnsupportedModelError:
        return None


def _layers(view: GraphView, axes: FoldedAxes) -> Iterator[Product]:
    sizes = BatchOfOne(view)
    for node in used_nodes(view):
        if node.op_type in LINEAR_OPS:
            x, w, y = (_lengths(sizes, axes, name) for name in (node.input[0], node.input[1], node.output[0]))
            yield Product.of(_factors(node, x, w, y))


def _lengths(sizes: BatchOfOne, axes: FoldedAxes, tensor: str) -> list[Length]:
    return axes.lengths(tensor, sizes.shape(tensor, any_leading=True))


def _factors(node: NodeProto, x: Sequence[Length], w: Sequence[Length], y: Sequence[Length]) -> list[Length]:
    if node.op_type == "ConvTranspose":  # every input element meets the filters of its channel: (C, M/group, k...)
        return [*x, *w[1:]]
    if node.op_type in ("Conv", "FusedConv"):  # every output element is a sum over one filter: (M, C/group, k...)
        return [*y, *w[1:]]
    return [*y, x[-2] if attr_int(node, "transA", 0) else x[-1]]
