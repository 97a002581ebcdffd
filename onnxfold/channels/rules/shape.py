"""Shape and Size: operators that read widths instead of values."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.declarations import Axis
from onnxfold.channels.registry import channel_rule
from onnxfold.graph.shapes.picked import picked_dimensions
from onnxfold.graph.view import GraphView


@channel_rule("Shape", mixes="its width is read as a number that the model computes with", carries=True)
def shape(node: NodeContext) -> None:
    """Only the dimensions that other nodes read must stay."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    start = node.integer("start", 0)
    first = max(0, start + rank if start < 0 else start)
    end = node.integer("end", rank)
    count = max(0, min(rank, end + rank if end < 0 else end) - first)
    for axis in set(range(rank)) - {first + i for i in _read_numbers(node.view, y, count)}:
        node.link(Axis(x, axis), Axis(x, axis))


def _read_numbers(view: GraphView, tensor: str, count: int) -> set[int]:
    """Return which of the numbers in a shape other nodes read."""
    everything = set(range(count))
    if tensor in view.output_names:
        return everything
    seen: set[int] = set()
    for consumer in view.consumers(tensor):
        picked = picked_dimensions(view, consumer, count) if consumer.input[0] == tensor else None
        if picked is None:
            return everything
        seen |= set(picked.reshape(-1).tolist())
    return seen


@channel_rule("Size", mixes="its width is read as a number that the model computes with")
def size(node: NodeContext) -> None:
    """Every dimension counts."""
