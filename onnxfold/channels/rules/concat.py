"""Concat."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule("Concat")
def concat(node: NodeContext) -> None:
    """Place inputs one behind the other on one axis, side by side on the others."""
    y = node.output()
    axis = node.integer("axis", 1) % node.rank(y)
    offset = 0
    for x in node.inputs:
        node.link_all(x, y, but=[axis])
        width = node.width(node.axis(x, axis))
        if width is None:
            raise CannotDeclareError(f"the width of '{x}' on the joined axis is unknown; give it with --input-shapes")
        node.link(node.axis(x, axis), node.axis(y, axis), None, np.arange(offset, offset + width))
        offset += width
