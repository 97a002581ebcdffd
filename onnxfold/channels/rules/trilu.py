"""Trilu."""

from onnxfold.channels.context import NodeContext, channel_rule


@channel_rule("Trilu", since=14, mixes="it cuts a triangle out of this axis and its neighbour")
def trilu(node: NodeContext) -> None:
    """Axes in front of the last two pass through."""
    node.link_all(node.input(0), node.output(), but=[-2, -1])
