"""Pooling over spatial axes."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule


@channel_rule(
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool",
    mixes="pooling mixes neighbouring positions of its spatial axes",
)  # fmt: skip
def pooling(node: NodeContext) -> None:
    """Batch and channels pass through."""
    if node.output(1):
        raise CannotDeclareError("its output Indices numbers elements across channels")
    for axis in (0, 1):
        node.link(node.axis(node.input(0), axis), node.axis(node.output(), axis))
