"""Multiply-accumulates per sample, plain and as a processor computes them in tiles; the size of a model."""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from onnxfold.budget.costs.lengths import (
    FoldedAxes,
    Graphs,
    Length,
    Product,
    SumCost,
    Tiling,
    group_count,
    number_groups,
)
from onnxfold.budget.costs.weights import BatchOfOne, common_batch, count_parameters, graphs_of, used_nodes
from onnxfold.channels.declarations import Lengths, Linear
from onnxfold.channels.layers import is_tiled, linear
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.nodes import multiplies_integers
from onnxfold.graph.view import GraphView
from onnxfold.report import ModelSize


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


#: Costs are counted in fifths of a multiply-accumulate of a tile.
UNIT = 5
_TILE, ALIGNED = 8, 4
#: What the work of an entry counts without tiles, in a plain and in a depthwise convolution.
UNTILED, UNTILED_DEPTHWISE = 8, 18
#: Outputs are computed in tiles, whatever their number.
_OUTPUTS = Tiling(_TILE)
#: Inputs that fill no tile are read as they are. Others are read in tiles if their number is a multiple of 4; if not,
#: the convolution is computed without tiles, at 1.6 times the cost, a depthwise one at 3.6 times the cost.
_INPUTS = Tiling(_TILE, least=_TILE, aligned=ALIGNED, tiled=UNIT, untiled=UNTILED)
_DEPTHWISE = Tiling(_TILE, aligned=ALIGNED, tiled=UNIT, untiled=UNTILED_DEPTHWISE)
#: Grouped convolutions are computed without tiles.
_GROUPED = 8


class TiledMacsCost(SumCost):
    """Multiply-accumulates per sample, weighted by the time that a tiled runtime takes for them.

    As :class:`~onnxfold.budget.costs.macs.MacsCost`, but the channels of two-dimensional convolutions count in tiles.
    The numbers are those of onnxruntime on processors with AVX2, AVX-512 or NEON: measured ratios, rounded, and the
    smaller of the tiles in use, so that the cost is the same on every machine. Unlike other costs it may fall where a
    group gets wider: 32 channels are computed faster than 31.
    """

    def __init__(self, graphs: Graphs) -> None:
        products = [p for view, axes in number_groups(graphs) for p in _tiled_products(view, axes)]
        super().__init__(products, group_count(graphs), divisor=UNIT * common_batch(graphs[0][0]))


def _tiled_products(view: GraphView, axes: FoldedAxes) -> Iterator[Product]:
    sizes = BatchOfOne(view)
    for node in used_nodes(view):
        operator = linear(view, node)
        if operator is None:
            continue
        in_tiles = is_tiled(view, operator)
        lengths = [
            _tile_axis(length, number, part, operator) if in_tiles else length
            for part in operator.products
            for number, length in enumerate(axis_lengths(sizes, axes, part), start=part.start or 0)
        ]
        is_grouped = operator.convolved_parts > 1 and not operator.is_depthwise
        factor = 1 if in_tiles else _GROUPED if is_grouped else UNIT
        yield Product.of(lengths, factor)


def _tile_axis(length: Length, axis: int, part: Lengths, operator: Linear) -> Length:
    """Return an axis of a convolution's result or filters, in tiles where it holds channels."""
    if axis != 1 or (part.tensor == operator.weight and operator.convolved_parts > 1):
        return length
    if part.tensor == operator.weight:
        return replace(length, tiling=_INPUTS)
    return replace(length, tiling=_DEPTHWISE if operator.convolved_parts > 1 else _OUTPUTS)


#: Writing an element of an activation takes as long as so many multiply-accumulates (ResNet18 and MobileNetV2 were
#: measured): networks of depthwise convolutions have few of these, and take long.
_MACS_PER_ELEMENT = 200


def forward_cost(view: GraphView) -> float:
    """Return the cost of a run of one sample in multiply-accumulates; 0 where sizes are not known."""
    try:
        sizes = BatchOfOne(view)
        written = [sizes.shape(name, any_leading=True) for node in view.nodes for name in node.output if name]
        elements = sum(prod(shape) for shape in written) / common_batch(view)
        return MacsCost([(view, [])])([]) + _MACS_PER_ELEMENT * elements
    except UnsupportedModelError:
        return 0.0


def model_size(view: GraphView) -> ModelSize:
    """Return parameters, multiply-accumulates per sample, and the bytes of its file."""
    return ModelSize(count_parameters(view), count_macs(view), file_bytes(view))
