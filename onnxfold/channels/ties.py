"""Axes that may change together: which groups hold them, and where one of them keeps all others as they are."""

from collections.abc import Sequence
from dataclasses import replace

from onnxfold.channels.declarations import Axis, Tie
from onnxfold.channels.group import FoldGroup


def settled_ties(groups: Sequence[FoldGroup], ties: Sequence[Tie]) -> list[Tie]:
    """Return the ties; one with an axis that must stay gets that as its reason."""
    return [tie if tie.reason or len(tie.axes) < 2 else _settle_tie(groups, tie) for tie in ties]


def tie_of(group: FoldGroup, ties: Sequence[Tie]) -> int | None:
    """Return the number of the tie that a group is held by; None for most groups."""
    for number, tie in enumerate(ties):
        if not tie.reason and len(tie.axes) > 1 and any(axis in group.tensors for axis in tie.axes):
            return number
    return None


def _settle_tie(groups: Sequence[FoldGroup], tie: Tie) -> Tie:
    holders = {axis: [group for group in groups if axis in group.tensors] for axis in tie.axes}
    first = next((holding[0] for holding in holders.values() if holding), None)
    for axis, holding in holders.items():
        if first is None or len(holding) != 1 or not _is_like(holding[0], first, axis):
            return replace(tie, reason=f"it must stay as long as the same axis of '{axis.tensor}', which cannot change")
    return tie


def _is_like(group: FoldGroup, first: FoldGroup, axis: Axis) -> bool:
    """Whether a group can take the widths of the first one, and each of its channels has one place on the axis."""
    same = group.size == first.size and group.block_count == first.block_count
    return same and group.tensors[axis].shape[1] == 1
