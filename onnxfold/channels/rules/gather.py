"""Gather: selection of positions, or look-up in a table."""

import numpy as np

from onnxfold.channels.context import NodeContext
from onnxfold.channels.declarations import Axis, Positions, Role
from onnxfold.channels.registry import channel_rule


@channel_rule("Gather", mixes="it picks single positions of this axis", carries=True)
def gather(node: NodeContext) -> None:
    """Carry all axes but the gathered one over; constant indices in one dimension renumber that one too.

    Case 1: a constant table (embedding) produces its other axes. Case 2: constant indices (channel
    shuffle) select channels.
    """
    data, indices, y = node.input(0), node.input(1), node.output()
    rank, index_rank = node.rank(data), node.rank(indices)
    axis = node.integer("axis", 0) % rank
    for source in range(rank):
        if source != axis:
            result = Axis(y, source if source < axis else source + index_rank - 1)
            if node.is_weight(data):
                node.use(Axis(data, source), Role.PRODUCER, result)
                node.rotatable(result)
            else:
                node.link(Axis(data, source), result)
    chosen = node.constant(1)
    if chosen is not None and chosen.ndim == 1 and not node.is_weight(data):
        source_axis, result = Axis(data, axis), Axis(y, axis)
        width = node.width(source_axis)
        if width is not None:
            _follow(node, source_axis, result, chosen % width)
            node.select(result, source_axis, input_index=1)
    elif chosen is None:
        for i in range(index_rank):
            node.link(Axis(indices, i), Axis(y, axis + i))


def _follow(node: NodeContext, source: Axis, result: Axis, chosen: Positions) -> None:
    """Link positions to those that they are copied from; heads that are repeated one by one stand for their copies."""
    times = len(chosen) // max(node.width(source) or 0, 1)
    if times > 1 and np.array_equal(chosen, np.repeat(np.arange(node.width(source) or 0), times)):
        node.repeat(source, result, chosen, np.arange(len(chosen)))
    else:
        node.link(source, result, chosen, None)
