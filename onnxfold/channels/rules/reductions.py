"""Reductions, and operators that read widths: the axes that are not reduced pass through."""

from onnxfold.channels.context import NodeContext, channel_rule
from onnxfold.channels.declarations import Axis
from onnxfold.channels.rules.normalization import averages_one_layer
from onnxfold.graph.patterns import picked_dimensions
from onnxfold.graph.view import GraphView

_MIXES = "it reduces over this axis, where a merged channel would count only once"


@channel_rule(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", mixes=_MIXES,
)  # fmt: skip
def reduce(node: NodeContext) -> None:
    """Axes are an attribute, later an input; none means all of them (or none of them, with noop_with_empty_axes)."""
    rank = node.rank(node.input(0))
    axes = node.constant_ints(1, "list of axes") if node.input(1) else node.integers("axes")
    if not axes and not node.integer("noop_with_empty_axes", 0):
        axes = list(range(rank))
    _link_unreduced(node, {a % rank for a in axes})
    for axis in axes if node.op_type == "ReduceMean" and node.integer("keepdims", 1) else ():
        if averages_one_layer(node, axis):
            channels = node.axis(node.input(0), axis)
            node.link(channels, channels)
            node.equal_blocks(channels, 1, averaged=True)


@channel_rule("ArgMax", "ArgMin", mixes="its result is a position on this axis")
def arg_extremum(node: NodeContext) -> None:
    """One axis is reduced to an index."""
    _link_unreduced(node, {node.integer("axis", 0) % node.rank(node.input(0))})


def _link_unreduced(node: NodeContext, reduced: set[int]) -> None:
    """Link every axis that is not reduced to its place in the result."""
    kept = [axis for axis in range(node.rank(node.input(0))) if axis not in reduced]
    node.carry(kept, kept if node.integer("keepdims", 1) else range(len(kept)))


@channel_rule("Shape", mixes="its width is read as a number that the model computes with", carries=True)
def shape(node: NodeContext) -> None:
    """Only the dimensions that other nodes read must stay."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    stated = range(rank)[node.integer("start", 0) : node.integer("end", rank)]
    for axis in set(range(rank)) - {stated.start + i for i in _read_numbers(node.view, y, len(stated))}:
        node.link(Axis(x, axis), Axis(x, axis))


def _read_numbers(view: GraphView, tensor: str, count: int) -> set[int]:
    """Return which of the numbers in a shape other nodes read."""
    picked = [picked_dimensions(view, n, count) if n.input[0] == tensor else None for n in view.consumers(tensor)]
    if tensor in view.output_names or any(numbers is None for numbers in picked):
        return set(range(count))
    return {int(number) for numbers in picked if numbers is not None for number in numbers.reshape(-1)}


@channel_rule("Size", mixes="its width is read as a number that the model computes with")
def size(node: NodeContext) -> None:
    """Every dimension counts."""
