"""Costs of running: multiply-accumulates, plain and as a processor computes them in tiles, and measured latencies.

Every node that takes time in a table of latencies has its seconds there, at full widths. A layer whose shape was
measured alone follows the fit of :mod:`onnxfold.latency.table`, scaled to those seconds; other linear operators follow
their multiply-accumulates, and all other nodes the number of elements that they give. What belongs to no node stays.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from onnx import NodeProto

from onnxfold.budget.costs.lengths import FoldedAxes, Graphs, Length, Product, SumCost, Tiling
from onnxfold.budget.costs.weights import BatchOfOne, common_batch, count_parameters, graphs_of, used_nodes
from onnxfold.channels.declarations import Lengths, Linear, Recurrence
from onnxfold.channels.layers import computation, is_tiled, linear
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.files.save import file_bytes
from onnxfold.graph.nodes import integer_factors
from onnxfold.graph.patterns import behind
from onnxfold.graph.view import GraphView
from onnxfold.latency.micro_models import LayerShape, shape_of, width_axes
from onnxfold.latency.table import LatencyTable, fit
from onnxfold.report import ModelSize

#: Operators that give a matrix of weights in another order or type.
_REORDER = ("Transpose", "Cast", "DequantizeLinear", "Identity")


class MacsCost(SumCost):
    """Multiply-accumulates per sample as a function of the groups' widths.

    Counted are linear operators (Conv, ConvTranspose, Gemm, MatMul and their like) and recurrences, products of two
    activations included, padding as if it were computed. Open leading dimensions count as one; a batch that the model
    fixes is divided out. Of control flow, every body counts once.
    """

    _is_tiled = False

    def __init__(self, graphs: Graphs) -> None:
        tiled = self._is_tiled
        products = [
            product
            for i, (view, axes) in enumerate(FoldedAxes.of(graphs))  # bodies have no inputs that may be closed
            for product in _products(view, axes, BatchOfOne(view, is_closed=tiled and i == 0), tiled=tiled)
        ]
        super().__init__(graphs, products, divisor=(UNIT if tiled else 1) * common_batch(graphs[0][0]))


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
        operator = computation(view, node)
        factors = list(node.input) if isinstance(operator, Linear) else integer_factors(node)
        factors = [operator.inputs, operator.states] if isinstance(operator, Recurrence) else factors
        matrices.update(behind(view, name, _REORDER) for name in factors)
    shapes = (view.weights[name].shape for name in matrices if view.is_weight(name))
    return sum(prod(shape) for shape in shapes if len(shape) >= 2)


def _products(view: GraphView, axes: FoldedAxes, sizes: BatchOfOne, *, tiled: bool) -> Iterator[Product]:
    """Yield what the nodes of a graph multiply; `tiled` counts in fifths, channels of convolutions in tiles."""
    for node in used_nodes(view):
        operator = computation(view, node)
        if isinstance(operator, Recurrence):  # products with its input, and with its own last result
            steps = axis_lengths(sizes, axes, operator.steps)
            for weight in (operator.inputs, operator.states):
                lengths = [*steps, *axis_lengths(sizes, axes, Lengths(weight))]
                yield Product.of(lengths, UNIT if tiled else 1)
        elif isinstance(operator, Linear) and not tiled:
            yield Product.of(axes.drop_spare(operator.weight, _lengths(sizes, axes, operator)))
        elif isinstance(operator, Linear) and is_tiled(view, operator):
            yield Product.of(
                _tile_axis(length, number, part, operator)
                for part in operator.products
                for number, length in enumerate(axis_lengths(sizes, axes, part), start=part.start or 0)
            )
        elif isinstance(operator, Linear):
            is_grouped = operator.convolved_parts > 1 and not operator.is_depthwise
            yield Product.of(_lengths(sizes, axes, operator), _GROUPED if is_grouped else UNIT)


def _lengths(sizes: BatchOfOne, axes: FoldedAxes, operator: Linear) -> list[Length]:
    """Return the lengths whose product is the number of an operator's multiply-accumulates."""
    return [length for part in operator.products for length in axis_lengths(sizes, axes, part)]


def axis_lengths(sizes: BatchOfOne, axes: FoldedAxes, part: Lengths) -> list[Length]:
    """Return the lengths of the axes that a part of an operator's declaration names."""
    return axes.lengths(part.tensor, sizes.shape(part.tensor, any_leading=True))[part.start : part.stop]


#: Costs are counted in fifths of a multiply-accumulate of a tile.
UNIT = 5
_TILE, _ALIGNED = 8, 4
#: Outputs are computed in tiles, whatever their number.
_OUTPUTS = Tiling(_TILE)
#: Inputs that fill no tile are read as they are. Others are read in tiles if their number is a multiple of 4; if not,
#: the convolution is computed without tiles, at 1.6 times the cost, a depthwise one at 3.6 times the cost.
_INPUTS = Tiling(_TILE, least=_TILE, aligned=_ALIGNED, tiled=UNIT, untiled=8)
_DEPTHWISE = Tiling(_TILE, aligned=_ALIGNED, tiled=UNIT, untiled=18)
#: Grouped convolutions are computed without tiles.
_GROUPED = 8


class TiledMacsCost(MacsCost):
    """Multiply-accumulates per sample, weighted by the time that a tiled runtime takes for them.

    As :class:`MacsCost`, but channels of two-dimensional convolutions count in tiles: measured ratios of onnxruntime
    with AVX2, AVX-512 or NEON, rounded, and the smaller of the tiles, so that the cost is the same on every machine. It
    may fall where a group gets wider: 32 channels are computed faster than 31.
    """

    _is_tiled = True


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


#: Costs are nanoseconds; their parts are counted in this fraction of them, so that none is rounded to nothing.
_PARTS_PER_NS = 100_000


class LatencyCost(SumCost):
    """Nanoseconds of one run as a function of the groups' widths."""

    def __init__(self, graphs: Graphs, table: LatencyTable) -> None:
        super().__init__(graphs, _timed_products(graphs, table), divisor=_PARTS_PER_NS)


_ONE = Length(1)


@dataclass(frozen=True, eq=False)
class Timed:
    """A node, and what its seconds depend on."""

    name: str
    shape: LayerShape | None = None  # its shape, if it is a layer that can be measured alone
    inputs: Length = _ONE  # the widths of such a layer
    outputs: Length = _ONE
    amount: tuple[Length, ...] = ()  # of other nodes, lengths whose product their seconds are in proportion to


def timed_nodes(graphs: Graphs) -> Iterator[Timed]:
    """Yield the nodes of all graphs."""
    for view, axes in FoldedAxes.of(graphs):
        sizes = BatchOfOne(view)
        for node in used_nodes(view):
            yield _time_node(view, axes, sizes, node)


def _time_node(view: GraphView, axes: FoldedAxes, sizes: BatchOfOne, node: NodeProto) -> Timed:
    operator, name = linear(view, node), node.output[0]
    with suppress(UnsupportedModelError):
        if operator is None:
            return Timed(name, amount=tuple(_elements(axes, sizes, node)))
        if operator.weight:
            weight = axes.lengths(operator.weight, view.weights[operator.weight].shape)
            inputs, outputs = (weight[i] for i in width_axes(node)) if len(weight) > 1 else (_ONE, _ONE)
            data = sizes.shape(node.input[0], any_leading=True)
            shape = shape_of(view, node, operator.weight, data, (bool(inputs.parts), bool(outputs.parts)))
            if shape is not None:
                return Timed(name, shape, inputs, outputs)
        return Timed(name, amount=tuple(_lengths(sizes, axes, operator)))
    return Timed(name)


def _elements(axes: FoldedAxes, sizes: BatchOfOne, node: NodeProto) -> list[Length]:
    """Return the lengths of the larger of a node's first input and result: a reduction takes time for what it reads."""
    candidates = []
    for name in (*node.output[:1], *node.input[:1]):
        with suppress(UnsupportedModelError):
            candidates.append(axes.lengths(name, sizes.shape(name, any_leading=True)))
    return max(candidates, key=lambda lengths: prod(length.whole for length in lengths), default=[])


def _timed_products(graphs: Graphs, table: LatencyTable) -> Iterator[Product]:
    measured = sum(table.nodes.values())
    # A profile takes some time itself: of a network of small layers, more than there is.
    scale = table.correction * min(table.dense_s / measured if measured else 1.0, 1.0)
    parts = scale * 1e9 * _PARTS_PER_NS
    rest = max(table.dense_s - measured, 0.0)
    left = dict(table.nodes)
    for timed in timed_nodes(graphs):
        seconds = left.pop(timed.name, 0.0)
        if seconds:
            yield from _node(timed, seconds * parts, table)
    yield Product(round((rest + sum(left.values())) * parts))


def _node(timed: Timed, whole: float, table: LatencyTable) -> Iterator[Product]:
    """Yield the products that a node takes, `whole` in all at full widths."""
    samples = table.layers.get(timed.shape.key, ()) if timed.shape is not None else ()
    if timed.shape is None or not samples:
        lengths = timed.amount if timed.shape is None else (timed.inputs, timed.outputs)
        vary = [length for length in lengths if length.parts]
        yield Product.of(vary, round(whole / prod(max(length.whole, 1) for length in vary)))
        return
    shape, inputs, outputs, unit = timed.shape, timed.inputs, timed.outputs, 1
    block, depthwise = table.block if shape.is_tiled else 1, shape.kind == "depthwise"
    if depthwise:
        inputs = _ONE
    if shape.is_tiled and shape.kind == "conv":
        inputs = replace(inputs, tiling=replace(_INPUTS, size=block, least=block))
        outputs, unit = replace(outputs, tiling=Tiling(block)), UNIT
    elif shape.is_tiled:
        outputs, unit = replace(outputs, tiling=replace(_DEPTHWISE, size=block)), UNIT
    a, b, d, e = fit(samples, block=block, is_depthwise=depthwise)
    c_unit, m_unit = (unit, 1) if shape.kind == "conv" else (1, unit)
    # At full widths.
    c, m = (length.tiling.count(length.whole or length.fixed // length.blocks) for length in (inputs, outputs))
    full = a + b * c / c_unit + d * m / m_unit + e * c * m / unit
    parts = whole / full if full > 0.0 else 0.0
    yield Product(round(a * parts))
    yield Product.of([inputs], round(b * parts / c_unit))
    yield Product.of([outputs], round(d * parts / m_unit))
    yield Product.of([inputs, outputs], round(e * parts / unit))
