"""Table of clusterings, by the names that ``--cluster`` takes.

Those of :data:`OF_NETWORKS` know which network a channel comes from. Each of them makes clusters of channels that stand
for the same in different networks. Where fewer channels are wanted than it makes clusters, the clusters with the
smallest norm go; where more, those that go together least are taken apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.clusterings import rotation, scores, weight_matching
from onnxfold.cluster.clusterings.agglomerative import agglomerate, greedy
from onnxfold.cluster.clusterings.elimination import eliminate
from onnxfold.cluster.clusterings.ifm import ifm
from onnxfold.cluster.clusterings.inn import resample, smooth_paths
from onnxfold.cluster.clusterings.kmeans import kmeans
from onnxfold.cluster.clusterings.spectral import spectral
from onnxfold.cluster.gram import Points, Vector
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition, renumber
from onnxfold.cluster.task import Candidates, Computed, Task
from onnxfold.errors import ConfigError
from onnxfold.graph.view import GraphView

#: Takes points, weights and k; returns the cluster of every point.
Clustering = Callable[[Points, Vector, int], Labels]
Compute = Callable[[Task, int], ChannelPartition]
Pairing = Callable[[GraphView, Sequence[FoldGroup], Sequence[Labels | None]], list[weight_matching.Partners]]


def _of_classes(choose: Callable[[Labels, Labels, Vector, int], Labels], task: Task, k: int) -> ChannelPartition:
    """Merge exact duplicates first, then choose of what is left, equally many in every block.

    `choose` takes classes, the first unit of each, and how many units each has; it returns their clusters.
    """
    per_block = k // task.group.block_count
    labels = np.zeros(task.group.size, np.int64)
    for block, units in enumerate(task.group.units_by_block):
        inside = task.classes[units]
        distinct, first, place = np.unique(inside, return_index=True, return_inverse=True)
        if len(distinct) <= per_block:
            local = _split_duplicates(inside, per_block)
        else:
            sizes = np.bincount(place).astype(np.float64)
            local = choose(distinct, units[first], sizes, per_block)[place]
        labels[units] = np.where(local < 0, -1, local + block * per_block)
    return mean_partition(labels)


def _clusters(clustering: Clustering, task: Task, k: int) -> ChannelPartition:
    """Merge what is in a cluster of points."""
    return _of_classes(lambda classes, _, sizes, k: clustering(task.points.of(classes), sizes, k), task, k)


def _split_duplicates(classes: Labels, k: int) -> Labels:
    """Return k clusters of equal channels: surplus clusters take single duplicates out of their class."""
    _, first = np.unique(classes, return_index=True)
    single = np.delete(np.arange(len(classes)), first)[: k - len(first)]
    labels = classes.copy()
    labels[single] = classes.max() + 1 + single
    return renumber(labels)[0]


def _distinct(task: Task, k: int) -> ChannelPartition:
    """Merge exact duplicates, then keep the channels with the largest norm."""
    norms = scores.row_norms(task.graph.stored, task.group, order=2)

    def keep(classes: Labels, units: Labels, sizes: Vector, k: int) -> Labels:
        rank = np.argsort(np.argsort(-norms[units], kind="stable"))
        return np.where(rank < k, rank, -1)

    return _of_classes(keep, task, k)


def _top(order: Literal[1, 2], task: Task, k: int) -> ChannelPartition:
    return scores.top_norm(task.graph.stored, task.group, k, order=order)


def _ifm(task: Task, k: int) -> ChannelPartition:
    return ifm(task.graph.stored, task.group, k, task.classes)


def _eliminate(task: Task) -> Candidates:
    group = task.group
    merges = task.graph.merges and not group.apart
    return eliminate(task.moments, task.classes, group.blocks, narrowest=task.narrowest, merges=merges)


def _rotate(task: Task) -> Candidates:
    """Rotate a group whose channels may be, by what the network shows of them or by its weights; select elsewhere."""
    group = task.group
    if not group.rotates:
        return Computed(task, partial(_top, 2), SELECTION, forgets=True)
    if group.scoring:
        return rotation.shared_rotations(task.graph.stored, group, task.moments)
    if group.is_between_factors:
        return rotation.factor_rotations(task.graph.stored, group, task.moments)
    view = task.graph.view if group.norms else task.graph.stored
    seen = rotation.seen_moments(view, group, task.moments, task.graph.words)
    centred = any(norm.centred for norm in group.norms)  # which subtract the mean of all channels
    return rotation.rotations(seen, task.metric, normed=bool(group.norms), centred=centred)


def _inn(task: Task) -> Candidates:
    if task.group.apart:
        return Computed(task, _distinct, SELECTION, forgets=True)
    paths = smooth_paths(task.graph.stored, task.group)
    return Computed(task, lambda _, k: resample(paths, k), "inn", forgets=True)


def _wanda(task: Task) -> Candidates:
    by_unit = scores.wanda_scores(task.moments)
    return Computed(task, lambda task, k: scores.keep_largest(by_unit, task.group, k), "wanda", task.group.size)


def _flap(task: Task) -> Candidates:
    held = task.graph.stored.weights
    weights = sum(
        held[m.axis.tensor].size // (held[m.axis.tensor].shape[m.axis.axis] * m.axis.blocks) * m.positions.shape[1]
        for m in task.group.members
    )
    by_unit, errors = scores.fluctuations(task.moments), scores.fluctuation_errors(task.moments)
    return scores.ByComparedScore(task.group, by_unit, errors, weights, "flap")


@dataclass(frozen=True)
class Partitioner:
    """A row of the table."""

    name: str  # name on the command line
    candidates: Callable[[Task], Candidates]
    summary: str  # one line for the documentation
    averages: bool = True  # whether channels are averaged; others only select
    #: Whether partitions are chosen by what consumers see on some inputs; a task without moments is never given then.
    needs_moments: bool = False
    #: Groups whose channels the row :data:`ROTATION` rotates: tables of words, residual streams, or none.
    rotates: Literal["", "tables", "streams"] = ""
    needs_places: bool = False  # whether these moments are to hold what is seen place by place
    #: Whether the losses of its candidates say by themselves how groups compare; those of others are weighed by what
    #: they do to the outputs, where that is measured.
    compares: bool = False
    #: Takes a graph of networks, its groups and their sources; returns partners per group, for all groups at once.
    pairs: Pairing | None = None

    @property
    def rotates_streams(self) -> bool:
        """Whether residual streams are rotated."""
        return self.rotates == "streams"


def _merge_partners(task: Task, k: int) -> ChannelPartition:
    """Join every channel of a further network with its partner in the first one, the most alike first."""
    group, partners = task.group, task.sources.partners
    labels = np.arange(group.size)
    if partners is not None:
        for units in group.units_by_block:
            known = units[partners.unit[units] >= 0]
            ranked = known[np.argsort(-partners.likeness[known], kind="stable")]
            merged = ranked[: max(len(units) - k // group.block_count, 0)]
            labels[merged] = partners.unit[merged]
    return _strongest(task, labels, k)


def _merge_correlated(task: Task, k: int) -> ChannelPartition:
    """Merge the most correlated pairs, greedily."""
    group = task.group
    networks = task.sources.networks
    sources = np.zeros(group.size, np.int64) if networks is None else networks
    likeness = weight_matching.correlations([seen.covariance for seen in task.moments])
    labels = np.arange(group.size)
    for units in group.units_by_block:
        inner = weight_matching.zip_channels(likeness[np.ix_(units, units)], sources[units], k // group.block_count)
        labels[units] = units[inner]
    return _strongest(task, labels, k)


def _strongest(task: Task, labels: Labels, k: int) -> ChannelPartition:
    """Keep, in every block, the clusters with the largest norm, if there are more than wanted."""
    kept = labels.copy()
    norms = np.zeros(len(labels))
    np.add.at(norms, labels, scores.row_norms(task.graph.stored, task.group, order=2) ** 2)
    for units in task.group.units_by_block:
        clusters = np.unique(labels[units])
        ranked = clusters[np.argsort(-norms[clusters], kind="stable")]
        kept[np.isin(labels, ranked[k // task.group.block_count :])] = -1
    return mean_partition(kept)


def width_row(
    name: str, compute: Compute, summary: str, *, apart: Compute | None = _distinct, **more: Any
) -> Partitioner:
    """Return a row whose partitions are computed one width at a time; its error curves are measured on them.

    Where the mean of different channels means nothing, `apart` is computed, which selects channels by their norm; None
    stands for the same as elsewhere. `more` are further fields of the row.
    """

    def candidates(task: Task) -> Candidates:
        chosen, used = (apart, SELECTION) if apart is not None and task.group.apart else (compute, name)
        return Computed(task, chosen, used, forgets=not more.get("needs_moments"))

    return Partitioner(name, candidates, summary, **more)


def cluster_row(name: str, clustering: Clustering, summary: str, **more: Any) -> Partitioner:
    """Return a row that clusters the points of a task, and averages what is in a cluster; see :func:`width_row`."""
    return width_row(name, partial(_clusters, clustering), summary, **more)


#: The row that selects channels where one that averages must not, as the mean of different channels means nothing,
#: and where one that selects lacks the moments that it needs.
SELECTION = "top-l2"
#: The row that rotates.
ROTATION = "rotation"
PARTITIONERS = {
    p.name: p
    for p in (
        Partitioner("elimination", _eliminate, "drop or merge, at the least loss after least squares (needs inputs)",
                    needs_moments=True, rotates="tables"),
        cluster_row("kmeans", kmeans, "k-means on producer rows and consumer columns"),
        cluster_row("kmeans-heads", kmeans, "the same, heads of attention averaged as channels are", apart=None),
        cluster_row("ward", partial(agglomerate, "ward"), "agglomerative, Ward's linkage"),
        cluster_row("complete", partial(agglomerate, "complete"), "agglomerative, complete linkage"),
        cluster_row("average", partial(agglomerate, "average"), "agglomerative, average linkage"),
        cluster_row("single", partial(agglomerate, "single"), "agglomerative, single linkage"),
        cluster_row("spectral", spectral, "spectral clustering, self-tuning affinity"),
        cluster_row("greedy", greedy, "nearest pairs by direction, one at a time"),
        width_row("ifm", _ifm, "iterative feature merging"),
        Partitioner("inn", _inn, "channels in a smooth order, interpolated at fewer points"),
        width_row("top-l1", partial(_top, 1), "keep the channels with the largest L1 norm", apart=None, averages=False),
        width_row("top-l2", partial(_top, 2), "keep the channels with the largest L2 norm", apart=None, averages=False),
        Partitioner("rotation", _rotate, "principal axes of channels that may be rotated, top-l2 for others",
                    averages=False, rotates="tables"),
        Partitioner("streams", _rotate, "principal axes of residual streams, top-l2 for others (needs inputs)",
                    averages=False, needs_moments=True, rotates="streams"),
        Partitioner("wanda", _wanda, "keep the channels with the largest weights times activations (needs inputs)",
                    averages=False, needs_moments=True, needs_places=True),
        Partitioner("flap", _flap, "keep the channels that fluctuate most, as standardised per layer (needs inputs)",
                    averages=False, needs_moments=True, needs_places=True, compares=True),
    )
}  # fmt: skip

OF_NETWORKS = {
    p.name: p
    for p in (
        width_row("by-place", _merge_partners, "channels at the same place in every network: the plain mean",
                  apart=partial(_top, 2), pairs=weight_matching.partners_by_place),
        width_row("matching", _merge_partners, "weight matching: one channel of each network, by their weights",
                  apart=partial(_top, 2), pairs=weight_matching.match_weights),
        width_row("zip", _merge_correlated, "greedy pairs by correlation, also within a network (needs inputs)",
                  apart=partial(_top, 2), needs_moments=True),
    )
}  # fmt: skip


def find_partitioner(name: str, *, of_networks: bool = True) -> Partitioner:
    """Return a clustering by name."""
    known = PARTITIONERS | OF_NETWORKS if of_networks else PARTITIONERS
    if name in OF_NETWORKS and not of_networks:
        raise ConfigError(f"cluster '{name}' is for networks that are merged, by `onnxfold merge`")
    if name not in known:
        raise ConfigError(f"cluster '{name}' is unknown: choose one of {', '.join(known)}")
    return known[name]
