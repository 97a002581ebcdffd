"""Table of clusterings, by the names that ``--cluster`` takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.candidates import Candidates
from onnxfold.cluster.clusterings.agglomerative import (
    average_linkage,
    complete_linkage,
    greedy,
    single_linkage,
    ward_linkage,
)
from onnxfold.cluster.clusterings.elimination import eliminate
from onnxfold.cluster.clusterings.ifm import ifm
from onnxfold.cluster.clusterings.kmeans import kmeans
from onnxfold.cluster.clusterings.rotation import (
    factor_rotations,
    linear_moments,
    rotated_blocks,
    rotations,
    seen_moments,
    shared_rotations,
)
from onnxfold.cluster.clusterings.scores import (
    ByComparedScore,
    fluctuation_errors,
    fluctuations,
    keep_largest,
    row_norms,
    top_norm,
    wanda_scores,
)
from onnxfold.cluster.clusterings.spectral import spectral
from onnxfold.cluster.clusterings.weight_matching import Partners
from onnxfold.cluster.gram import kmeans_by_products
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition, partial_partition
from onnxfold.cluster.task import Computed, Task
from onnxfold.graph.view import GraphView

Clustering = Callable[..., Labels]


def _clusters(clustering: Clustering, wide: Clustering | None, task: Task, k: int) -> ChannelPartition:
    """Merge exact duplicates first, then cluster what is left as weighted representatives, block by block."""
    group, classes = task.group, task.classes
    per_block = k // group.block_count
    labels = np.zeros(group.size, np.int64)
    for block, units in enumerate(group.units_by_block):
        distinct = np.unique(classes[units])
        if len(distinct) <= per_block:
            local = split_duplicates(classes[units], per_block)
        else:
            weights = np.bincount(classes[units])[distinct].astype(np.float64)
            if wide is not None and task.is_wide:
                of_class = wide(task.products.of(distinct), weights, per_block, seed=task.graph.seed)
            else:
                of_class = clustering(task.points[distinct], weights, per_block, seed=task.graph.seed)
            local = of_class[np.searchsorted(distinct, classes[units])]
        labels[units] = local + block * per_block
    return mean_partition(labels)


def split_duplicates(classes: Labels, k: int) -> Labels:
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


def _distinct(task: Task, k: int) -> ChannelPartition:
    """Merge exact duplicates, then keep the channels with the largest norm, equally many in every block."""
    group, classes = task.group, task.classes
    per_block = k // group.block_count
    norms = row_norms(task.graph.stored, group, order=2)
    labels = np.full(group.size, -1, np.int64)
    for block, units in enumerate(group.units_by_block):
        distinct, first = np.unique(classes[units], return_index=True)
        if len(distinct) <= per_block:
            local = split_duplicates(classes[units], per_block)
        else:
            kept = distinct[np.argsort(-norms[units[first]], kind="stable")[:per_block]]
            rank = {int(label): i for i, label in enumerate(kept)}
            local = np.array([rank.get(int(label), -1) for label in classes[units]])
        labels[units] = np.where(local < 0, -1, local + block * per_block)
    return partial_partition(labels)


def _top(order: Literal[1, 2], task: Task, k: int) -> ChannelPartition:
    return top_norm(task.graph.stored, task.group, k, order=order)


def _ifm(task: Task, k: int) -> ChannelPartition:
    return ifm(task.graph.stored, task.group, k, seed=task.graph.seed, classes=task.classes)


def _eliminate(task: Task) -> Candidates:
    group = task.group
    merges = task.graph.merges and not group.apart
    return eliminate(task.moments, task.classes, group.blocks, narrowest=task.narrowest, merges=merges)


def _rotate(task: Task) -> Candidates:
    """Rotate a group whose channels may be, by what the network shows of them or by its weights; select elsewhere."""
    group = task.group
    if not group.rotates:
        return Computed(task, partial(_top, 2), SELECTION, forgets=True)
    if group.blocks is not None:
        return Computed(task, _rotate_blocks, ROTATION)
    if group.scoring:
        return shared_rotations(task.graph.stored, group, task.moments)
    if group.is_between_factors:
        return factor_rotations(task.graph.stored, group, task.moments)
    seen = seen_moments(task.graph.view if group.norms else task.graph.stored, group, task.moments, task.graph.words)
    return rotations(seen, task.metric, normed=bool(group.norms), centred=group.centred)


def _rotate_blocks(task: Task, k: int) -> ChannelPartition:
    assert task.group.blocks is not None
    return rotated_blocks(linear_moments(task.graph.stored, task.group, task.moments), task.group.blocks, k)


def _wanda(task: Task) -> Candidates:
    scores = wanda_scores(task.moments)
    return Computed(task, lambda task, k: keep_largest(scores, task.group, k), "wanda", task.group.size)


def _flap(task: Task) -> Candidates:
    sizes = (
        task.graph.stored.weight_size(m.axis.tensor)
        // (task.graph.stored.weights[m.axis.tensor].shape[m.axis.axis] * m.axis.blocks)
        for m in task.group.members
    )
    weights = sum(size * m.positions.shape[1] for size, m in zip(sizes, task.group.members, strict=True))
    scores, errors = fluctuations(task.moments), fluctuation_errors(task.moments)
    return ByComparedScore(task.group, scores, errors, weights, "flap")


@dataclass(frozen=True)
class Partitioner:
    """A row of the table.

    Parameters
    ----------
    name : str
        Name on the command line.
    candidates : callable
        Takes a :class:`Task`, returns its :class:`~onnxfold.cluster.candidates.Candidates`.
    summary : str
        One line for the documentation.
    averages : bool
        Whether channels are averaged; others only select.
    needs_moments : bool
        Whether partitions are chosen by what consumers see on some inputs; a task without moments is never given then.
    rotates : str
        Groups whose channels the row :data:`ROTATION` rotates: "tables" of words, residual "streams", or none.
    needs_places : bool
        Whether these moments are to hold what is seen place by place.
    compares : bool
        Whether the losses of its candidates say by themselves how groups compare; those of others are weighed by what
        they do to the outputs, where that is measured.
    pairs : callable, optional
        Takes a graph of networks, its groups and their sources; returns partners per group: what is chosen for all
        groups at once.
    """

    name: str
    candidates: Callable[[Task], Candidates]
    summary: str
    averages: bool = True
    needs_moments: bool = False
    rotates: Literal["", "tables", "streams"] = ""
    needs_places: bool = False
    compares: bool = False
    pairs: Callable[[GraphView, Sequence[FoldGroup], Sequence[Labels | None]], list[Partners]] | None = None

    @property
    def rotates_streams(self) -> bool:
        """Whether residual streams are rotated."""
        return self.rotates == "streams"

    @property
    def stand_in(self) -> str:
        """The row that takes its place where it needs moments, and there are none."""
        return "kmeans" if self.averages else SELECTION


def width_row(
    name: str,
    compute: Callable[[Task, int], ChannelPartition],
    summary: str,
    *,
    averages: bool = True,
    averages_apart: bool = False,
) -> Partitioner:
    """Return a row whose partitions are computed one width at a time; its error curves are measured on them.

    Where the mean of different channels means nothing, a row that averages selects channels by their norm instead, or
    averages all the same (`averages_apart`).
    """
    selects = averages and not averages_apart

    def candidates(task: Task) -> Candidates:
        chosen, used = (_distinct, SELECTION) if selects and task.group.apart else (compute, name)
        return Computed(task, chosen, used, forgets=True)

    return Partitioner(name, candidates, summary, averages)


def cluster_row(
    name: str,
    clustering: Clustering,
    summary: str,
    *,
    wide: Clustering | None = None,
    averages_apart: bool = False,
) -> Partitioner:
    """Return a row that clusters the points of a task, `wide` those of a wide one; it averages what is in a cluster."""
    return width_row(name, partial(_clusters, clustering, wide), summary, averages_apart=averages_apart)


#: The row that selects channels where one that averages must not, as the mean of different channels means nothing,
#: and where one that selects lacks the moments that it needs.
SELECTION = "top-l2"
#: The row that rotates.
ROTATION = "rotation"
PARTITIONERS = {
    p.name: p
    for p in (
        Partitioner(
            "elimination", _eliminate, "drop or merge, at the least loss after least squares (needs inputs)",
            needs_moments=True, rotates="tables",
        ),
        cluster_row("kmeans", kmeans, "k-means on producer rows and consumer columns", wide=kmeans_by_products),
        cluster_row(
            "kmeans-heads", kmeans, "the same, heads of attention averaged as channels are",
            wide=kmeans_by_products, averages_apart=True,
        ),
        cluster_row("ward", ward_linkage, "agglomerative, Ward's linkage"),
        cluster_row("complete", complete_linkage, "agglomerative, complete linkage"),
        cluster_row("average", average_linkage, "agglomerative, average linkage"),
        cluster_row("single", single_linkage, "agglomerative, single linkage"),
        cluster_row("spectral", spectral, "spectral clustering, self-tuning affinity"),
        cluster_row("greedy", greedy, "nearest pairs by direction, one at a time"),
        width_row("ifm", _ifm, "iterative feature merging"),
        width_row("top-l1", partial(_top, 1), "keep the channels with the largest L1 norm", averages=False),
        width_row("top-l2", partial(_top, 2), "keep the channels with the largest L2 norm", averages=False),
        Partitioner(
            "rotation", _rotate, "principal axes of channels that may be rotated, top-l2 for others",
            averages=False, rotates="tables",
        ),
        Partitioner(
            "streams", _rotate, "principal axes of residual streams, top-l2 for others (needs inputs)",
            averages=False, needs_moments=True, rotates="streams",
        ),
        Partitioner(
            "wanda", _wanda, "keep the channels with the largest weights times activations (needs inputs)",
            averages=False, needs_moments=True, needs_places=True,
        ),
        Partitioner(
            "flap", _flap, "keep the channels that fluctuate most, as standardised per layer (needs inputs)",
            averages=False, needs_moments=True, needs_places=True, compares=True,
        ),
    )
}  # fmt: skip
