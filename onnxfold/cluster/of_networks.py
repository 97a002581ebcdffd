"""Table of clusterings that know which network a channel comes from, beside those that need not.

Each of them makes clusters of channels that stand for the same in different networks. Where fewer channels are wanted
than it makes clusters, the clusters with the smallest norm go; where more, those that go together least are taken
apart.
"""

from collections.abc import Callable

import numpy as np

from onnxfold.cluster.candidates import Candidates
from onnxfold.cluster.clusterings.scores import row_norms
from onnxfold.cluster.clusterings.weight_matching import (
    Partners,
    correlations,
    match_weights,
    partners_by_place,
    zip_channels,
)
from onnxfold.cluster.partition import ChannelPartition, Labels, partial_partition
from onnxfold.cluster.partitioners import PARTITIONERS, SELECTION, Partitioner
from onnxfold.cluster.task import Computed, Task
from onnxfold.errors import ConfigError


def _merge_partners(task: Task, k: int) -> ChannelPartition:
    """Join every channel of a further network with its partner in the first one, the most alike first."""
    group, partners = task.group, task.partners
    labels = np.arange(group.size)
    if partners is None:
        return _strongest(task, labels, k)
    for units in group.units_by_block:
        known = units[partners.unit[units] >= 0]
        ranked = known[np.argsort(-partners.likeness[known], kind="stable")]
        merged = ranked[: max(len(units) - k // group.block_count, 0)]
        labels[merged] = partners.unit[merged]
    return _strongest(task, labels, k)


def _merge_correlated(task: Task, k: int) -> ChannelPartition:
    """Merge the most correlated pairs, greedily."""
    group = task.group
    sources = np.zeros(group.size, np.int64) if task.sources is None else task.sources
    likeness = correlations([seen.covariance for seen in task.moments])
    labels = np.arange(group.size)
    for units in group.units_by_block:
        inner = zip_channels(likeness[np.ix_(units, units)], sources[units], k // group.block_count)
        labels[units] = units[inner]
    return _strongest(task, labels, k)


def _strongest(task: Task, labels: Labels, k: int) -> ChannelPartition:
    """Keep, in every block, the clusters with the largest norm, if there are more than wanted."""
    kept = labels.copy()
    norms = np.zeros(len(labels))
    np.add.at(norms, labels, row_norms(task.graph.stored, task.group, order=2) ** 2)
    for units in task.group.units_by_block:
        clusters = np.unique(labels[units])
        ranked = clusters[np.argsort(-norms[clusters], kind="stable")]
        kept[np.isin(labels, ranked[k // task.group.block_count :])] = -1
    return partial_partition(kept)


def _row(
    name: str,
    compute: Callable[[Task, int], ChannelPartition],
    summary: str,
    *,
    needs_moments: bool = False,
    pairs: Callable[..., list[Partners]] | None = None,
) -> Partitioner:
    """Return a row whose partitions are computed one width at a time; heads are selected by their norm."""

    def candidates(task: Task) -> Candidates:
        if task.group.apart:
            return PARTITIONERS[SELECTION].candidates(task)
        return Computed(task, compute, name)

    return Partitioner(name, candidates, summary, needs_moments=needs_moments, pairs=pairs)


OF_NETWORKS = {
    p.name: p
    for p in (
        _row(
            "by-place",
            _merge_partners,
            "channels at the same place in every network: the plain mean",
            pairs=partners_by_place,
        ),
        _row(
            "matching",
            _merge_partners,
            "weight matching: one channel of each network, by their weights",
            pairs=match_weights,
        ),
        _row(
            "zip",
            _merge_correlated,
            "greedy pairs by correlation, also within a network (needs inputs)",
            needs_moments=True,
        ),
    )
}


def find_partitioner(name: str, *, of_networks: bool = True) -> Partitioner:
    """Return a clustering by name."""
    known = PARTITIONERS | OF_NETWORKS if of_networks else PARTITIONERS
    if name in OF_NETWORKS and not of_networks:
        raise ConfigError(f"cluster '{name}' is for networks that are merged, by `onnxfold merge`")
    if name not in known:
        raise ConfigError(f"cluster '{name}' is unknown: choose one of {', '.join(known)}")
    return known[name]
