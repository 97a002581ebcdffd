"""Transpose."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.registry import channel_rule
from onnxfold.graph.view import attr_ints


@channel_rule("Transpose")
def transpose(node: NodeContext) -> None:
    """Axis i of the result is axis perm[i] of the input."""
    x, y = node.input(0), node.output()
    perm = attr_ints(node.node, "perm", reversed(range(node.rank(x))))
    for place, axis in enumerate(perm):
        node.link(node.axis(x, axis), node.axis(y, place))
