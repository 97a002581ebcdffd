"""Iterative Feature Merging (IFM): greedy pairs of the most similar features.

docs/mathematics.md, "Iterative Feature Merging", has the formulas.
Sources: arXiv 2310.06756.
"""

from collections.abc import Callable

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.gram import Vector, role_gram
from onnxfold.cluster.partition import ChannelPartition, Labels, check_clusters, mean_partition, renumber
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView


def ifm(view: GraphView, group: FoldGroup, k: int, classes: Labels) -> ChannelPartition:
    """Merge the most similar features of a group, one pair after the other."""
    check_clusters(k, group.size, group.block_count)
    rows, columns = role_gram(view, group, Role.PRODUCER), role_gram(view, group, Role.CONSUMER)
    labels = np.zeros(group.size, np.int64)
    for block, units in enumerate(group.units_by_block):
        inside = np.ix_(units, units)
        merged = merge_features(rows[inside], columns[inside], classes[units], k // group.block_count)
        labels[units] = merged + block * group.size
    return mean_partition(labels)


def merge_features(rows: Matrix, columns: Matrix, classes: Labels, k: int) -> Labels:
    """Merge pairs of features until k are left."""
    rows, columns, counts = rows.copy(), columns.copy(), np.ones(len(rows))

    def distances(units: slice) -> Matrix:
        total = np.zeros((units.stop - units.start, len(rows)))
        for gram in (rows, columns):
            squares = gram.diagonal()
            total += np.maximum(squares[units, None] + squares[None, :] - 2.0 * gram[units], 0.0)
        total[classes[units, None] == classes[None, :]] = -1.0
        return total

    def merge(u: int, v: int) -> Vector:
        share = float(counts[v] / (counts[u] + counts[v]))
        _combine(rows, u, v, 1.0, 1.0)
        _combine(columns, u, v, 1.0 - share, share)
        counts[u] += counts[v]
        return np.asarray(distances(slice(u, u + 1))[0])

    return merge_nearest(distances(slice(0, len(rows))), k, merge)


def merge_nearest(distances: Matrix, k: int, merge: Callable[[int, int], Vector]) -> Labels:
    """Merge the nearest two clusters until k are left.

    Every cluster remembers its nearest other one, so that a merge costs O(n) unless it was the nearest of many.
    """
    n = len(distances)
    current = distances.copy()
    np.fill_diagonal(current, np.inf)
    labels, alive = np.arange(n), np.ones(n, bool)
    nearest = current.argmin(axis=1)
    gap = current[np.arange(n), nearest]
    for _ in range(n - k):
        u = int(np.argmin(gap))
        v = int(nearest[u])  # u < v: both remember a distance as small, and argmin takes the first
        alive[v] = False
        labels[labels == v] = u
        row = np.where(alive, merge(u, v), np.inf)
        row[u] = np.inf
        current[v], current[:, v], gap[v] = np.inf, np.inf, np.inf
        current[u], current[:, u] = row, row
        lost = alive & ((nearest == u) | (nearest == v))
        nearest[lost] = current[lost].argmin(axis=1)
        gap[lost] = current[lost, nearest[lost]]
        closer = alive & ((row < gap) | ((row == gap) & (u < nearest)))
        closer[u] = False
        nearest[closer], gap[closer] = u, row[closer]
    return renumber(labels)[0]


def _combine(gram: Matrix, u: int, v: int, a: float, b: float) -> None:
    """Replace vector u by a u + b v in a matrix of inner products."""
    gram[u] = a * gram[u] + b * gram[v]
    gram[:, u] = a * gram[:, u] + b * gram[:, v]
