"""The decision of a fold: a partition for every group."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from onnxfold.channels.declarations import Axis, Positions
from onnxfold.channels.group import FoldGroup, Member, lists_by_key
from onnxfold.cluster.partition import ChannelPartition, Labels
from onnxfold.progress import Progress, silent


@dataclass(frozen=True, eq=False)
class FoldPlan:
    """Groups, and how the channels of each are merged."""

    groups: tuple[FoldGroup, ...]  # only groups that lose channels
    partitions: tuple[ChannelPartition, ...]
    classes: tuple[Labels, ...] = ()  # classes of exact duplicates, one per group; empty where they are not known

    def __iter__(self) -> Iterator[tuple[FoldGroup, ChannelPartition]]:
        return iter(zip(self.groups, self.partitions, strict=True))

    @cached_property
    def members(self) -> dict[str, list[tuple[Member, ChannelPartition]]]:
        """The members that lie on the axes of every weight, with their partitions."""
        return lists_by_key((m.axis.tensor, (m, partition)) for group, partition in self for m in group.members)

    @cached_property
    def groups_by_axis(self) -> dict[Axis, list[tuple[FoldGroup, ChannelPartition]]]:
        """The groups that lie on every axis of an activation, with their partitions."""
        return lists_by_key((axis, (group, partition)) for group, partition in self for axis in group.tensors)

    @cached_property
    def _dropped_positions(self) -> dict[Axis, Positions]:
        """Positions that vanish, per axis of any tensor."""
        gone = [(group, np.setdiff1d(np.arange(group.size), partition.representatives)) for group, partition in self]
        parts = ((axis, at[units].reshape(-1)) for group, units in gone for axis, at in group.places.items())
        return {axis: np.sort(np.concatenate(pieces)) for axis, pieces in lists_by_key(parts).items()}

    @cached_property
    def lossy(self) -> "FoldPlan":
        """The part of the plan that does more than merge exact duplicates: all that a repair has to look at."""
        if not self.classes:
            return self
        kept = []
        for group, partition, classes in zip(self.groups, self.partitions, self.classes, strict=True):
            sizes = partition.cluster_sizes
            is_even = not group.rules.averaged or (sizes == sizes[0]).all()
            if not (is_even and partition.only_merges(classes)):
                kept.append((group, partition, classes))
        return FoldPlan(*zip(*kept, strict=True)) if kept else FoldPlan((), ())

    def count_kept(self, axis: Axis, start: int, stop: int) -> int:
        """Return how many of the positions ``start:stop`` of an axis remain."""
        gone = self._dropped_positions.get(axis, np.zeros(0, np.int64))
        return stop - start - int(np.searchsorted(gone, stop) - np.searchsorted(gone, start))

    def kept_positions(self, axis: Axis, width: int) -> Positions:
        """Return the positions of an axis, out of `width`, that remain."""
        return np.setdiff1d(np.arange(width), self._dropped_positions.get(axis, np.zeros(0, np.int64)))

    def touches(self, axis: Axis) -> bool:
        """Whether an axis loses positions."""
        return axis in self._dropped_positions

    def fold_member(self, member: Member, partition: ChannelPartition) -> Member:
        """Return a member with the positions, shape (k, r), that its clusters have after the fold."""
        old = member.positions[partition.representatives]
        gone = self._dropped_positions.get(member.axis, np.zeros(0, np.int64))
        return replace(member, positions=old - np.searchsorted(gone, old))


def plan_folds(
    groups: Sequence[FoldGroup], widths: Sequence[int], partition: Callable[[int, int], ChannelPartition],
    progress: Progress = silent, classes: Sequence[Labels] = (),
) -> FoldPlan:  # fmt: skip
    """Partition every group that shrinks."""
    shrinking = [i for i, group in enumerate(groups) if widths[i] < group.size]
    partitions = []
    for done, i in enumerate(shrinking):
        progress(f"partition {groups[i].name}", done, len(shrinking))
        partitions.append(partition(i, widths[i]))
    equal = tuple(classes[i] for i in shrinking) if classes else ()
    return FoldPlan(tuple(groups[i] for i in shrinking), tuple(partitions), equal)
