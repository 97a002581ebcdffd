"""Latency as a function of the widths, from a table of measured latencies.

Every node that takes time in the table has its seconds there, at full widths. A layer whose shape was measured alone
follows the fit of :mod:`onnxfold.latency.table`, scaled to those seconds; other linear operators follow their
multiply-accumulates, and all other nodes the number of elements that they give. What belongs to no node stays.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from onnx import NodeProto

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
from onnxfold.budget.costs.macs import ALIGNED, UNIT, UNTILED, UNTILED_DEPTHWISE, axis_lengths
from onnxfold.budget.costs.weights import BatchOfOne, used_nodes
from onnxfold.channels.layers import linear
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.view import GraphView
from onnxfold.latency.micro_models import LayerShape, shape_of, width_axes
from onnxfold.latency.table import Factors, LatencyTable, fit

#: Costs are nanoseconds; their parts are counted in this fraction of them, so that none is rounded to nothing.
_PARTS_PER_NS = 100_000
_NS_PER_S = 1_000_000_000


class LatencyCost(SumCost):
    """Nanoseconds of one run as a function of the groups' widths."""

    def __init__(self, graphs: Graphs, table: LatencyTable) -> None:
        products = list(_products(graphs, table))
        super().__init__(products, group_count(graphs), divisor=_PARTS_PER_NS)


@dataclass(frozen=True, eq=False)
class Timed:
    """A node, and what its seconds depend on."""

    name: str
    shape: LayerShape | None  # its shape, if it is a layer that can be measured alone
    inputs: Length  # the widths of such a layer
    outputs: Length
    amount: tuple[Length, ...]  # of other nodes, lengths whose product their seconds are in proportion to


def timed_nodes(graphs: Graphs) -> Iterator[Timed]:
    """Yield the nodes of all graphs."""
    for view, axes in number_groups(graphs):
        sizes = BatchOfOne(view)
        for node in used_nodes(view):
            yield _time_node(view, axes, sizes, node)


def _time_node(view: GraphView, axes: FoldedAxes, sizes: BatchOfOne, node: NodeProto) -> Timed:
    unit, operator = Length(1), linear(view, node)
    with suppress(UnsupportedModelError):
        if operator is None:
            return Timed(node.output[0], None, unit, unit, tuple(_elements(axes, sizes, node)))
        if operator.weight:
            weight = axes.lengths(operator.weight, view.weights[operator.weight].shape)
            inputs, outputs = (weight[i] for i in width_axes(node)) if len(weight) > 1 else (unit, unit)
            data = {node.input[0]: sizes.shape(node.input[0], any_leading=True)}
            shape = shape_of(view, node, data, (bool(inputs.parts), bool(outputs.parts)))
            if shape is not None:
                return Timed(node.output[0], shape, inputs, outputs, ())
        amount = [length for part in operator.products for length in axis_lengths(sizes, axes, part)]
        return Timed(node.output[0], None, unit, unit, tuple(amount))
    return Timed(node.output[0], None, unit, unit, ())


def _elements(axes: FoldedAxes, sizes: BatchOfOne, node: NodeProto) -> list[Length]:
    """Return the lengths of the larger of a node's first input and result: a reduction takes time for what it reads."""
    candidates = []
    for name in (*node.output[:1], *node.input[:1]):
        with suppress(UnsupportedModelError):
            candidates.append(axes.lengths(name, sizes.shape(name, any_leading=True)))
    return max(candidates, key=lambda lengths: prod(length.whole for length in lengths), default=[])


def _products(graphs: Graphs, table: LatencyTable) -> Iterator[Product]:
    measured = sum(table.nodes.values())
    # A profile takes some time itself: of a network of small layers, more than there is.
    scale = table.correction * min(table.dense_s / measured if measured else 1.0, 1.0)
    parts = scale * _NS_PER_S * _PARTS_PER_NS
    rest = max(table.dense_s - measured, 0.0)
    left: Mapping[str, float] = dict(table.nodes)
    for timed in timed_nodes(graphs):
        seconds = left.pop(timed.name, 0.0)  # type: ignore[attr-defined]
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
    block = table.block if timed.shape.is_tiled else 1
    depthwise = timed.shape.kind == "depthwise"
    factors = fit(samples, block=block, least_inputs=block, is_depthwise=depthwise)
    yield from _fitted_products(timed, timed.shape, whole, factors, block)


def _fitted_products(timed: Timed, shape: LayerShape, whole: float, factors: Factors, block: int) -> Iterator[Product]:
    inputs, outputs, unit = timed.inputs, timed.outputs, 1
    if not shape.is_tiled:
        inputs = Length(1) if shape.kind == "depthwise" else inputs
    elif shape.kind == "conv":
        inputs = replace(inputs, tiling=Tiling(block, least=block, aligned=ALIGNED, tiled=UNIT, untiled=UNTILED))
        outputs, unit = replace(outputs, tiling=Tiling(block)), UNIT
    else:
        tiling = Tiling(block, aligned=ALIGNED, tiled=UNIT, untiled=UNTILED_DEPTHWISE)
        inputs, outputs, unit = Length(1), replace(outputs, tiling=tiling), UNIT
    a, b, d, e = factors
    c_unit, m_unit = (unit, 1) if shape.kind == "conv" else (1, unit)
    c, m = (  # at full widths
        replace(length, fixed=(length.whole or length.fixed // length.blocks), parts=(), blocks=1).constant
        for length in (inputs, outputs)
    )
    full = a + b * c / c_unit + d * m / m_unit + e * c * m / unit
    parts = whole / full if full > 0.0 else 0.0
    yield Product(round(a * parts))
    yield Product.of([inputs], round(b * parts / c_unit))
    yield Product.of([outputs], round(d * parts / m_unit))
    yield Product.of([inputs, outputs], round(e * parts / unit))
