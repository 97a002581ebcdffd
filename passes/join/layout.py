"""Places of channels on an axis when every channel may become several.

A fold keeps, on every axis, the places of some channels in their old order. This is the reverse: each new unit is given
a *slot*, an old unit, and where a run of positions of that unit stood, runs of all units of its slot stand. Whatever a
fold may take away again can be put in this way, so the result is valid wherever folds are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.channels.group import FoldGroup

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WideAxis:
    """An axis with room for the new units, by new position."""

    place: Index  # ascending; the old position whose place it takes
    #: Which group and which new unit it belongs to, and which of the unit's positions on this axis it is; -1: none.
    group: Index
    unit: Index
    rank: Index


def lay_out(
    groups: Sequence[FoldGroup], slots: Sequence[Index], tensor: str, axis: int, blocks: int, shape: tuple[int, ...]
) -> WideAxis:
    """Lay out an axis: where a run of one unit's positions stood, stand those of its slot's new units."""
    width = shape[axis] * blocks
    group_at, unit_at, rank_at = np.full((3, width), -1, np.int64)
    for g, group in enumerate(groups):
        for key, positions in [(m.axis, m.positions) for m in group.members] + list(group.tensors.items()):
            if (key.tensor, key.axis) == (tensor, axis):
                group_at[positions] = g
                unit_at[positions] = np.arange(group.size)[:, None]
                rank_at[positions] = np.arange(positions.shape[1])
    starts = np.flatnonzero(np.diff(group_at, prepend=-2) | np.diff(unit_at, prepend=-2) | (group_at < 0))
    members = {g: _members(slots[g]) for g in set(group_at[group_at >= 0].tolist())}
    rows: list[Index] = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), width], strict=True):
        g, run = int(group_at[start]), np.arange(start, stop)
        units = [-1] if g < 0 else members[g].get(int(unit_at[start]), [])
        rows += [np.stack([run, group_at[run], np.full_like(run, new), rank_at[run]]) for new in units]
    return WideAxis(*np.concatenate([*rows, np.zeros((4, 0), np.int64)], axis=1))


def _members(slots: Index) -> dict[int, list[int]]:
    """Return the new units of every slot, in order."""
    members: dict[int, list[int]] = {}
    for new, slot in enumerate(slots.tolist()):
        members.setdefault(slot, []).append(new)
    return members
