"""The decision of a fold: a partition for every group."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Axis, Positions, Role
from onnxfold.channels.group import FoldGroup, Member
from onnxfold.cluster.duplicates import find_duplicates
from onnxfold.cluster.features import features
from onnxfold.cluster.gram import Points, rotate
from onnxfold.cluster.kmeans import kmeans
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.view import GraphView
from onnxfold.progress import Progress, silent


@dataclass(frozen=True, eq=False)
class FoldPlan:
    """Groups, and how the channels of each are merged.

    Parameters
    ----------
    groups : tuple of FoldGroup
        Only groups that lose channels.
    partitions : tuple of ChannelPartition
        One per group.
    """

    groups: tuple[FoldGroup, ...]
    partitions: tuple[ChannelPartition, ...]

    def __iter__(self) -> Iterator[tuple[FoldGroup, ChannelPartition]]:
        return iter(zip(self.groups, self.partitions, strict=True))

    def members_of(self, tensor: str) -> list[tuple[Member, ChannelPartition]]:
        """Return the members that lie on a weight's axes, with their partitions."""
        return self._members.get(tensor, [])

    @cached_property
    def _members(self) -> dict[str, list[tuple[Member, ChannelPartition]]]:
        members: dict[str, list[tuple[Member, ChannelPartition]]] = {}
        for group, partition in self:
            for member in group.members:
                members.setdefault(member.axis.tensor, []).append((member, partition))
        return members

    @cached_property
    def _dropped(self) -> dict[Axis, Positions]:
        """Positions that vanish, per axis of any tensor."""
        dropped: dict[Axis, list[Positions]] = {}
        for group, partition in self:
            gone = np.setdiff1d(np.arange(group.size), partition.representatives)
            members = {m.axis: m.positions for m in group.members}
            for axis, positions in (members | dict(group.tensors)).items():
                dropped.setdefault(axis, []).append(positions[gone].reshape(-1))
        return {axis: np.sort(np.concatenate(found)) for axis, found in dropped.items()}

    def kept_between(self, axis: Axis, start: int, stop: int) -> int:
        """Return how many of the positions ``start:stop`` of an axis remain."""
        gone = self._dropped.get(axis)
        lost = 0 if gone is None else int(np.searchsorted(gone, stop) - np.searchsorted(gone, start))
        return stop - start - lost

    def kept_positions(self, axis: Axis, width: int) -> Positions:
        """Return the positions of an axis, out of `width`, that remain."""
        return np.setdiff1d(np.arange(width), self._dropped.get(axis, np.zeros(0, np.int64)))

    def touches(self, axis: Axis) -> bool:
        """Whether an axis loses positions."""
        return axis in self._dropped

    def folded(self, member: Member, partition: ChannelPartition) -> Member:
        """Return a member with the positions, shape (k, r), that its clusters have after the fold."""
        old = member.positions[partition.representatives]
        gone = self._dropped.get(member.axis, np.zeros(0, np.int64))
        return replace(member, positions=old - np.searchsorted(gone, old))


def plan_folds(
    view: GraphView,
    groups: list[FoldGroup],
    widths: list[int],
    duplicates: list[Labels],
    *,
    seed: int,
    with_deviation: bool = False,
    progress: Progress = silent,
) -> FoldPlan:
    """Cluster the channels of every group.

    Parameters
    ----------
    view : GraphView
        The graph whose weights are compared.
    groups : list of FoldGroup
        All groups.
    widths : list of int
        Number of clusters per group; groups whose width stays are left out of the plan.
    duplicates : list of ndarray
        Classes of exact duplicates per group, see :func:`onnxfold.cluster.duplicates.find_duplicates`.
    seed : int
        Seed of the clustering.
    with_deviation : bool
        Compare running variances too; for graphs whose rows are not normalised.
    progress : callable, optional
        Called for every group that shrinks.
    """
    chosen: list[FoldGroup] = []
    partitions: list[ChannelPartition] = []
    shrinking = sum(width < group.size for group, width in zip(groups, widths, strict=True))
    for group, width, classes in zip(groups, widths, duplicates, strict=True):
        if width < group.size:
            progress(f"cluster {group.name}", len(chosen), shrinking)
            chosen.append(group)
            partitions.append(partition_group(view, group, width, classes, seed=seed, with_deviation=with_deviation))
    return FoldPlan(tuple(chosen), tuple(partitions))


def partition_group(
    view: GraphView, group: FoldGroup, k: int, classes: Labels, *, seed: int, with_deviation: bool = False
) -> ChannelPartition:
    """Merge exact duplicates first, then cluster what is left as weighted representatives.

    Where a group has blocks, each block is clustered on its own into k / blocks clusters.
    """
    blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
    per_block = k // group.block_count
    points: Points | None = None
    labels = np.zeros(group.size, np.int64)
    for block in range(group.block_count):
        units = np.flatnonzero(blocks == block)
        distinct = np.unique(classes[units])
        if len(distinct) <= per_block:
            local = _split_duplicates(classes[units], per_block)
        else:
            if points is None:
                points = class_points(view, group, classes, with_deviation=with_deviation)
            weights = np.bincount(classes[units], minlength=len(points))[distinct].astype(np.float64)
            of_class = kmeans(points[distinct], weights, per_block, seed=seed)
            local = of_class[np.searchsorted(distinct, classes[units])]
        labels[units] = local + block * per_block
    return mean_partition(labels)


def class_points(view: GraphView, group: FoldGroup, classes: Labels, *, with_deviation: bool) -> Points:
    """Return one point per class of duplicates: mean of what produces it, sum of what consumes it."""
    merge = mean_partition(classes)

    def blocks() -> Iterator[npt.NDArray[np.floating]]:
        for role, rows in features(view, group, with_deviation=with_deviation):
            if merge.is_identity:
                yield rows
            else:
                matrix = merge.decode.T if role is Role.CONSUMER else merge.encode
                yield matrix.astype(rows.dtype) @ rows

    try:
        return rotate(blocks())
    except np.linalg.LinAlgError:
        raise UnsupportedModelError(
            f"weights of group '{group.name}' are NaN, infinite, or too large to compare: check the training"
        ) from None


def _split_duplicates(classes: Labels, k: int) -> Labels:
    """Return k clusters of equal channels: surplus clusters take single duplicates out of their class."""
    labels = classes.copy()
    spare = k - len(np.unique(classes))
    seen: set[int] = set()
    for i, label in enumerate(classes.tolist()):
        if label in seen and spare > 0:
            labels[i] = len(classes) + int(classes.max()) + i
            spare -= 1
        seen.add(label)
    return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)


__all__ = ["FoldPlan", "find_duplicates", "partition_group", "plan_folds"]
