"""Multiply-accumulates as a runtime on a processor computes them: channels of convolutions in whole tiles."""

from collections.abc import Iterator
from dataclasses import replace

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
from onnxfold.budget.costs.macs import axis_lengths
from onnxfold.budget.costs.shapes import BatchOfOne, common_batch
from onnxfold.budget.costs.weights import used_nodes
from onnxfold.channels.layers import is_tiled, linear
from onnxfold.channels.operators import Lengths, Linear
from onnxfold.graph.view import GraphView

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
        products = [p for view, axes in number_groups(graphs) for p in _products(view, axes)]
        super().__init__(products, group_count(graphs), divisor=UNIT * common_batch(graphs[0][0]))


def _products(view: GraphView, axes: FoldedAxes) -> Iterator[Product]:
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
