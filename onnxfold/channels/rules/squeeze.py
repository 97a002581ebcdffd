"""Squeeze and Unsqueeze."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.registry import Result, channel_rule


def _axes(node: NodeContext, rank: int) -> set[int] | None:
    axes = node.constant_ints(1, "list of axes") if node.input(1) else node.integers("axes")
    return {a % rank for a in axes} or None


@channel_rule("Squeeze", result=Result.VIEW, carries=True)
def squeeze(node: NodeContext) -> None:
    """Axes of size 1 vanish."""
    x, y = node.input(0), node.output()
    gone = _axes(node, node.rank(x))
    if gone is None:
        gone = {i for i, d in enumerate(node.shape(x)) if d == 1}
    kept = [axis for axis in range(node.rank(x)) if axis not in gone]
    for place, axis in enumerate(kept):
        node.link(node.axis(x, axis), node.axis(y, place))


@channel_rule("Unsqueeze", result=Result.VIEW, carries=True)
def unsqueeze(node: NodeContext) -> None:
    """Axes of size 1 appear."""
    x, y = node.input(0), node.output()
    new = _axes(node, node.rank(y)) or set()
    kept = [axis for axis in range(node.rank(y)) if axis not in new]
    for axis, place in enumerate(kept):
        node.link(node.axis(x, axis), node.axis(y, place))
