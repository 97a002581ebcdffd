"""Transpose."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule("Transpose", carries=True)
def transpose(node: NodeContext) -> None:
    """Axis i of the result is axis perm[i] of the input."""
    x, y = node.input(0), node.output()
    perm = node.integers("perm", reversed(range(node.rank(x))))
    for place, axis in enumerate(perm):
        node.link(node.axis(x, axis), node.axis(y, place))
        node.rotatable_in_heads(node.axis(x, axis))
        node.rotatable_in_heads(node.axis(y, place))
