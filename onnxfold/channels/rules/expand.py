"""Expand and Tile: repetition."""

import numpy as np

from onnxfold.channels.context import NodeContext
from onnxfold.channels.declarations import Axis
from onnxfold.channels.registry import channel_rule


@channel_rule("Expand", mixes="its target size is computed at run time", carries=True)
def expand(node: NodeContext) -> None:
    """Axes of equal size pass through, and the target shape counts them; axes of size 1 stretch."""
    x, y = node.input(0), node.output()
    target = node.constant(1)
    rank, out = node.shape(x), node.shape(y)
    for i in range(1, len(rank) + 1):
        source, result = Axis(x, len(rank) - i), Axis(y, len(out) - i)
        if rank[-i] == 1 or rank[-i] is None:
            continue
        node.link(source, result)
        if target is None:
            node.block(result, "its target size is computed at run time")
        elif i <= len(target) and int(target[-i]) != 1:
            node.count(result, input_index=1, element=len(target) - i)


@channel_rule("Tile", mixes="it repeats this axis a number of times that is computed at run time")
def tile(node: NodeContext) -> None:
    """Position j of the result is position j modulo the width of the input.

    An axis that comes out as wide as it went in is not repeated, though the repeats of others are computed.
    """
    x, y = node.input(0), node.output()
    repeats = node.constant_ints(1, "list of repeats") if node.is_weight(node.input(1)) else None
    for axis in range(node.rank(x)):
        width, result = node.width(node.axis(x, axis)), node.width(node.axis(y, axis))
        if repeats[axis] == 1 if repeats is not None else width is not None and width == result:
            node.link(node.axis(x, axis), node.axis(y, axis))
        elif repeats is not None and width is not None and result is not None:
            index = np.tile(np.arange(width), repeats[axis])
            node.link(node.axis(x, axis), node.axis(y, axis), index, None)
