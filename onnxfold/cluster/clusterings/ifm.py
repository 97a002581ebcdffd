r"""Iterative Feature Merging (IFM): greedy pairs of the most similar features.

**Published.** In every layer the two features m, n with the least distance

    D(m, n) = |W_l[m] - W_l[n]|^2 + |W_{l+1}[:, m] - W_{l+1}[:, n]|^2

are merged: incoming weights, biases and all four BatchNormalization parameters (the running variance too) are
*added up*, and outgoing weights are *averaged*, weighted by how many original features m and n already stand for.
Layers take turns, one merge each, and distances are taken anew from the merged weights, until in every layer the least
distance exceeds beta times the largest. Biases and BatchNormalization parameters do not enter distances.

**Here.** Distances are the published ones: after every merge they are taken between sums of rows and means of columns.
Merging goes on until k features are left. Each group is merged on its own, with the weights of its neighbours as they
were before any merge, and with all its producers and consumers, so that residual streams and Concat need no table per
architecture; blocks of grouped convolutions are merged separately, and exact duplicates before all other pairs.

P averages and Q adds up, where the published pair is N P and Q / N, with N the numbers of features merged: the same
function in a network of linear layers and ReLUs without BatchNormalization, and the one of the two forms that stays
exact on equal features under other activations. Added-up variances of BatchNormalization give a merged feature the
variance that uncorrelated members have; here nothing is rescaled, which is exact for equal features and leaves the loss
of variance of others to a repair.

References
----------
Chen, Zhou and Yan, "Going Beyond Neural Network Feature Similarity: The Network Feature Complexity and Its
Interpretation Using Category Theory", ICLR 2024, arXiv 2310.06756, section 4, and its published implementation.
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
        row: Vector = distances(slice(u, u + 1))[0]
        return row

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
