"""Slice."""

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.registry import channel_rule

_MIXES = "a strided or computed slice takes single positions out of this axis"


@channel_rule("Slice", since=1, mixes=_MIXES, carries=True)
def slice_attribute(node: NodeContext) -> None:
    """Bounds are attributes before opset 10."""
    starts, ends = node.integers("starts"), node.integers("ends")
    _slice(node, starts, ends, node.integers("axes", range(len(starts))), [1] * len(starts), as_input=False)


@channel_rule("Slice", since=10, mixes=_MIXES, carries=True)
def slice_input(node: NodeContext) -> None:
    """Bounds, axes and steps are inputs 1 to 4."""
    rank = node.rank(node.input(0))
    if node.input(3) and not node.is_weight(node.input(3)):
        raise CannotDeclareError("which axes it cuts is computed at run time")
    count = node.shape(node.input(1))[0] or 0
    axes = node.constant_ints(3, "axes") if node.input(3) else list(range(count))
    if not node.is_weight(node.input(1)) or not node.is_weight(node.input(2)):
        for axis in set(range(rank)) - {a % rank for a in axes}:
            node.link(node.axis(node.input(0), axis), node.axis(node.output(), axis))
        return
    steps = node.constant_ints(4, "steps") if node.input(4) else [1] * len(axes)
    starts, ends = node.constant_ints(1, "starts"), node.constant_ints(2, "ends")
    _slice(node, starts, ends, axes, steps, as_input=True)


def _slice(
    node: NodeContext, starts: list[int], ends: list[int], axes: list[int], steps: list[int], *, as_input: bool
) -> None:
    """Link the range start:end of a cut axis to all of the result's, and keep both bounds counting."""
    x, y = node.input(0), node.output()
    rank = node.rank(x)
    node.link_all(x, y, but=axes)
    for element, (start, end, axis, step) in enumerate(zip(starts, ends, axes, steps, strict=True)):
        source, result = node.axis(x, axis % rank), node.axis(y, axis % rank)
        width = node.width(source)
        if width is None or step != 1:
            continue
        first, last, _ = slice(start, end).indices(width)
        node.link(source, result, np.arange(first, max(first, last)), None)
        node.rotatable_in_heads(source)
        node.rotatable_in_heads(result)
        for index, bound, name in ((1, first, "starts"), (2, last, "ends")):
            target = {"input_index": index} if as_input else {"attribute": name}
            node.count(source, start=0, stop=bound, element=element, **target)
