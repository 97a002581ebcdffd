"""Softmax and its relatives, TopK."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.registry import channel_rule

_MIXES = "it normalises over this axis, where a merged channel would count only once"


@channel_rule("Hardmax", "LogSoftmax", "Softmax", since=1, mixes=_MIXES)
def softmax_flattened(node: NodeContext) -> None:
    """Before opset 13 all axes from `axis` on are normalised together."""
    x, y = node.input(0), node.output()
    for axis in range(node.integer("axis", 1) % node.rank(x)):
        node.link(node.axis(x, axis), node.axis(y, axis))


@channel_rule("Hardmax", "LogSoftmax", "Softmax", since=13, mixes=_MIXES)
def softmax(node: NodeContext) -> None:
    """One axis is normalised."""
    node.link_all(node.input(0), node.output(), but=[node.integer("axis", -1)])


@channel_rule("TopK", mixes="its results are ranks and positions on this axis")
def top_k(node: NodeContext) -> None:
    """One axis is sorted and cut."""
    axis = node.integer("axis", -1)
    for output in filter(None, node.outputs):
        node.link_all(node.input(0), output, but=[axis])
