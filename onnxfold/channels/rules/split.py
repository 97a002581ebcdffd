"""Split."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule("Split", since=1, carries=True)
def split_attribute(node: NodeContext) -> None:
    """Sizes are an attribute before opset 13."""
    _split(node, {"attribute": "split"})


@channel_rule("Split", since=13, carries=True)
def split_input(node: NodeContext) -> None:
    """Sizes are input 1."""
    _split(node, {"input_index": 1})


def _split(node: NodeContext, target: dict[str, object]) -> None:
    """Outputs are consecutive ranges of the axis; each size counts its own output."""
    x = node.input(0)
    axis = node.integer("axis", 0) % node.rank(x)
    source, offset = node.axis(x, axis), 0
    for element, y in enumerate(node.outputs):
        node.link_all(x, y, but=[axis])
        width = node.width(node.axis(y, axis))
        if width is None:
            raise CannotDeclareError("the width of the split axis is unknown; give it with --input-shapes")
        node.link(source, node.axis(y, axis), np.arange(offset, offset + width), None)
        node.rotatable_in_heads(source)
        node.rotatable_in_heads(node.axis(y, axis))
        node.count(node.axis(y, axis), element=element, **target)  # type: ignore[arg-type]
        offset += width
