"""Concat."""

import numpy as np

from onnxfold.channels.context import NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule(
    "Concat",
    mixes="on this axis it joins parts of which one has an unknown width; give it with --input-shapes",
    carries=True,
)
def concat(node: NodeContext) -> None:
    """Place inputs one behind the other on one axis, side by side on the others."""
    y = node.output()
    axis = node.integer("axis", 1) % node.rank(y)
    for x in node.inputs:
        node.link_all(x, y, but=[axis])
    widths = [node.width(node.axis(x, axis)) for x in node.inputs]
    if None in widths:
        return
    offset = 0
    for x, width in zip(node.inputs, widths, strict=True):
        node.link(node.axis(x, axis), node.axis(y, axis), None, np.arange(offset, offset + (width or 0)))
        offset += width or 0
