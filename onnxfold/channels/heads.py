"""Heads of attention as channels: each one position of an axis, or several behind each other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Positions, Role

#: Why the axes stay that attention does not carry over.
MIXES = "attention sums over this axis, where a merged channel would count only once"


@dataclass(frozen=True)
class Heads:
    """Heads on an axis."""

    axis: Axis
    count: int
    size: int = 1  # positions of each, one behind the other
    start: int = 0  # where the first one begins

    @property
    def stop(self) -> int:
        """The position behind the last one."""
        return self.start + self.count * self.size

    @property
    def firsts(self) -> Positions:
        """The first position of every head."""
        return self.start + self.size * np.arange(self.count)

    @property
    def positions(self) -> Positions:
        """All positions."""
        return np.arange(self.start, self.stop)


def heads_on(node: NodeContext, tensor: str, axis: int, count: int) -> Heads:
    """Return the heads that take up a whole axis."""
    along = node.axis(tensor, axis)
    width = node.width(along)
    if width is None or count < 1 or width % count:
        raise CannotDeclareError(f"the width of '{tensor}' is not known to be {count} heads; give it by --input-shapes")
    return Heads(along, count, width // count)


def inside_heads_on(node: NodeContext, tensor: str, axis: int, count: int) -> Heads:
    """Return the dimensions inside heads: on the axis that holds all of them, or on the last one of four."""
    if node.rank(tensor) == 3:
        return heads_on(node, tensor, axis, count)
    inside = node.axis(tensor, -1, count)
    return Heads(inside, count, (node.width(inside) or 0) // max(count, 1))


def keep_whole(node: NodeContext, heads: Heads) -> None:
    """Declare that heads are channels: dropped as a whole, their mean with others means nothing."""
    node.whole(heads.axis, heads.size, heads.start, heads.stop)
    node.keep_apart(heads.axis)


def equate_heads(node: NodeContext, heads: Heads, others: Heads) -> None:
    """Declare that heads on two axes are the same channels."""
    for side in (heads, others):
        keep_whole(node, side)
    node.link(heads.axis, others.axis, heads.firsts, others.firsts)


def cut_inside(node: NodeContext, values: Heads, output: Heads, caches: Sequence[str]) -> None:
    """Declare that heads stay, and that dimensions between values and outputs are channels, as many of each head."""
    if any(caches):
        for heads in (values, output):
            node.block(heads.axis, "values of this size are kept in a cache")
        return
    if values.size != output.size or values.count < 1 or output.count % values.count:
        raise CannotDeclareError(
            f"{output.count} heads of {output.size} are not made of {values.count} of {values.size}"
        )
    own = values.positions.reshape(values.count, values.size)
    node.link(values.axis, output.axis, np.repeat(own, output.count // values.count, axis=0).reshape(-1))
    for heads in (values, output):
        node.equal_blocks(heads.axis, heads.count)
        node.rotatable_in_heads(heads.axis)


def share(node: NodeContext, queries: Heads, keys: Heads) -> None:
    """Declare that equally many neighbouring heads of queries belong to every head of keys and values."""
    if queries.count == keys.count:
        equate_heads(node, queries, keys)
        return
    if keys.count < 1 or queries.count % keys.count:
        raise CannotDeclareError(f"{queries.count} query heads cannot share {keys.count} heads of keys and values")
    for heads in (queries, keys):
        keep_whole(node, heads)
    node.repeat(keys.axis, queries.axis, np.repeat(keys.firsts, queries.count // keys.count), queries.firsts)


def hold(node: NodeContext, entries: Heads, role: Role, heads: Heads) -> None:
    """Declare that a weight holds entries for every head."""
    node.keep_apart(heads.axis)
    node.use(entries.axis, role, heads.axis, entries.positions, np.repeat(heads.firsts, entries.size))


def link_per_head(node: NodeContext, tensors: Sequence[str], axis: int, heads: Heads) -> None:
    """Declare that tensors with one position per head on an axis, and not a single one for all, are cut with them.

    `axis` may be negative; tensors that do not have it hold nothing per head.
    """
    for tensor in filter(None, tensors):
        if node.rank(tensor) >= (axis + 1 if axis >= 0 else -axis):
            along = node.axis(tensor, axis)
            if node.width(along) == heads.count > 1:
                node.link(along, heads.axis, None, heads.firsts)
