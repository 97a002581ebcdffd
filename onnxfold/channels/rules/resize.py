"""Resize and Upsample."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule

_MIXES = "it interpolates along this axis"


@channel_rule("Upsample", mixes=_MIXES)
def upsample(node: NodeContext) -> None:
    """Scales are an attribute (7) or input 1 (9)."""
    attribute = node.value("scales")
    scales = np.asarray(attribute, np.float64) if attribute is not None else node.constant(1)
    _link_unscaled(node, scales)


@channel_rule("Resize", since=10, mixes=_MIXES)
def resize_10(node: NodeContext) -> None:
    """Inputs X, scales."""
    _link_unscaled(node, node.constant(1))


@channel_rule("Resize", since=11, mixes=_MIXES)
def resize(node: NodeContext) -> None:
    """Inputs X, roi, scales, sizes; a size of the channel axis counts channels."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    axes = [a % rank for a in node.integers("axes", range(rank))]
    if not node.input(3):
        _link_unscaled(node, node.constant(2), axes)
        return
    sizes = node.constant(3)
    for axis in range(rank):
        source, result = node.axis(x, axis), node.axis(y, axis)
        if axis not in axes:
            node.link(source, result)
        elif node.width(source) is not None and node.width(source) == node.width(result):
            if sizes is None and axis > 0:
                continue
            node.link(source, result)
            if sizes is not None:
                node.count(result, input_index=3, element=axes.index(axis))


def _link_unscaled(node: NodeContext, scales: object, axes: list[int] | None = None) -> None:
    """Link the axes whose scale is one."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    axes = list(range(rank)) if axes is None else axes
    if scales is None:
        raise CannotDeclareError("its scales are computed at run time")
    factors = dict(zip(axes, np.asarray(scales, np.float64).reshape(-1).tolist(), strict=False))
    for axis in range(rank):
        if factors.get(axis, 1.0) == 1.0:
            node.link(node.axis(x, axis), node.axis(y, axis))
