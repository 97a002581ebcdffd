r"""Exact reduction of long feature vectors to as many dimensions as there are points, and k-means by inner products.

Where only the Gram matrix K of the points is known, and with a matrix M whose rows average the members of a cluster,
the squared distance of point i to the mean of cluster c is

    K_ii - 2 (M K)_ci + (M K M^T)_cc.

M has one number per point, so a round of Lloyd's takes n^2 additions where points of n dimensions take n^2 k
multiplications, and K needs no eigenvectors. Groups of more than
:data:`onnxfold.statistics.samples.WIDE` channels, whose clusters are almost as many as they are, are clustered so.

Feature vectors by which channels are compared.

A unit's feature vector is the concatenation the paper clusters, [W_l | diag(Sigma_s) | diag(Sigma_n) | W_{l+1}^T],
over all producers, BatchNormalizations and consumers of the group. The diagonal matrices put every channel on
an axis of its own, so what they say is: channels with a large gamma or a small variance are better not merged. On a
graph whose BatchNormalizations have been normalised (see :mod:`onnxfold.passes.merge.normalize_batch_norm`), W_l is
already Sigma_n W_l, and Fold-AR leaves Sigma_n out.

References
----------
"Forget the Data and Fine-tuning! Just Fold the Network to Compress", arXiv 2502.10216, section 3.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup, Member, rows_of
from onnxfold.channels.layers import epsilon
from onnxfold.cluster.partition import Labels, check_clusters
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.statistics.moments import remove_mean
from onnxfold.statistics.samples import parts

Rows = npt.NDArray[np.floating]


def features(view: GraphView, group: FoldGroup, *, with_deviation: bool) -> Iterator[tuple[Role, Rows]]:
    """Yield the feature blocks of a group's units, each of shape (n_units, d).

    `with_deviation` includes Sigma_n; leave it out where rows are normalised.
    """
    for member in group.members:
        if member.role in (Role.PRODUCER, Role.CONSUMER):
            yield member.role, member_rows(view, member)
        elif member.role is Role.SCALE:
            yield member.role, _diagonals(member_rows(view, member))
        elif member.role is Role.VARIANCE and with_deviation:
            variance = np.maximum(member_rows(view, member), 0.0)
            yield member.role, _diagonals(1.0 / np.sqrt(variance + epsilon(view, member)))


def _diagonals(values: Rows) -> Rows:
    """Return [diag(v_1) | diag(v_2) | ...] for the columns of an (n, r) matrix."""
    return np.concatenate([np.diag(column) for column in values.T], axis=1)


def member_rows(view: GraphView, member: Member) -> Rows:
    """Return the entries of a weight for each unit, shape (n_units, d)."""
    rows = rows_of(view, member)
    return rows.reshape(len(rows), -1)


Points = npt.NDArray[np.float64]


def rotate(blocks: Iterable[npt.NDArray[np.floating]]) -> Points:
    r"""Return n points in n dimensions with the distances of n points in d >> n dimensions.

    With the features X (n x d) centred, X X^T = Q L Q^T; the rows of Q sqrt(L) have the same pairwise distances and
    weighted means as the rows of X, so k-means on them gives the same clusters. X is never formed: its Gram
    matrix is the sum of its blocks' Gram matrices.
    """
    return points_of(centred_gram(blocks))


def centred_gram(blocks: Iterable[npt.NDArray[np.floating]]) -> Points:
    """Return the Gram matrix of n centred points."""
    gram: Points | None = None
    for block in blocks:
        memory.require(4 * memory.array_bytes((len(block), len(block)), 8), f"comparing {len(block):,} channels")
        rest, _ = remove_mean(block)
        part = np.asarray(rest @ rest.T, np.float64)
        if gram is None:
            gram = part
        else:
            gram += part
        del part
    if gram is None:
        raise ValueError("at least one feature block is needed")
    centring = gram.mean(axis=0)
    gram -= centring[None, :]
    gram -= centring[:, None]
    gram += centring.mean()
    return gram


def points_of(gram: Points) -> Points:
    """Return points whose inner products a Gram matrix holds."""
    if len(gram) == 1:
        return np.zeros((1, 1))
    values, vectors = np.linalg.eigh(gram)
    keep = values > max(values[-1], 0.0) * 1e-12
    if not keep.any():
        return np.zeros((len(gram), 1))
    points: Points = vectors[:, keep] * np.sqrt(values[keep])
    return points


_MAX_ITERATIONS = 50


class Products:
    """Points by their inner products."""

    def __init__(self, gram: Points) -> None:
        self.gram = gram

    def of(self, points: Labels) -> "Products":
        """Return some of the points; all of them, if they are as many."""
        return self if len(points) == len(self.gram) else Products(self.gram[np.ix_(points, points)])

    @cached_property
    def tree(self) -> npt.NDArray[np.float64]:
        """Ward's hierarchy."""
        from scipy.cluster.hierarchy import linkage

        squares, n = self.gram.diagonal(), len(self.gram)
        distances = np.empty(n * (n - 1) // 2)
        start = 0
        for i in range(n - 1):
            row = distances[start : start + n - 1 - i]
            row[:] = squares[i] + squares[i + 1 :] - 2.0 * self.gram[i, i + 1 :]
            start += len(row)
        np.maximum(distances, 0.0, out=distances)
        np.sqrt(distances, out=distances)
        return np.asarray(linkage(distances, "ward"), np.float64)

    def mean_products(self, labels: Labels, weights: npt.NDArray[np.float64], k: int) -> tuple[Points, Points]:
        """Return the inner products of k weighted means with all points, shape (k, n), and with themselves.

        Points with the label -1 belong to no cluster; no other label may be missing.
        """
        members = np.flatnonzero(labels >= 0)
        total = np.bincount(labels[members], weights=weights[members], minlength=k)
        share = weights[members] / total[labels[members]]
        means = csr_array((share, (labels[members], members)), shape=(k, len(labels)))
        cross: Points = means @ self.gram
        own = share * cross[labels[members], members]
        return cross, np.bincount(labels[members], weights=own, minlength=k).astype(np.float64)

    def scatter(self, labels: Labels) -> float:
        """Return the part of the points' variance that lies within clusters, or in points with the label -1."""
        total = float(self.gram.trace()) - float(self.gram.mean()) * len(self.gram)
        sizes = np.bincount(labels[labels >= 0])
        _, means = self.mean_products(labels, np.ones(len(labels)), len(sizes))
        lost = float(self.gram.trace()) - float((sizes * means).sum())
        return max(lost, 0.0) / total if total > 0.0 else 0.0


def kmeans_by_products(points: Products, weights: npt.NDArray[np.float64], k: int, *, seed: int) -> Labels:
    """Cluster weighted points as :func:`onnxfold.cluster.clusterings.kmeans.kmeans` does, from Ward's hierarchy."""
    from scipy.cluster.hierarchy import fcluster

    n = len(points.gram)
    check_clusters(k, n)
    if k in (1, n):
        return np.arange(n) % k
    labels = np.asarray(fcluster(points.tree, k, "maxclust"), np.int64) - 1
    apart = np.zeros(n)
    for _ in range(_MAX_ITERATIONS):
        labels = _fill_empty(labels, apart, k)
        cross, squares = points.mean_products(labels, weights, k)
        nearest = np.empty_like(labels)
        for part in parts(n):
            distance = squares - 2.0 * cross[:, part].T
            nearest[part] = distance.argmin(axis=1)
            apart[part] = distance.min(axis=1) + points.gram.diagonal()[part]
        if np.array_equal(nearest, labels):
            break
        labels = nearest
    return _fill_empty(labels, apart, k)


def _fill_empty(labels: Labels, apart: npt.NDArray[np.float64], k: int) -> Labels:
    """Give every cluster a member: the points farthest from their mean, of clusters that have more."""
    sizes = np.bincount(labels, minlength=k)
    empty = np.flatnonzero(sizes == 0).tolist()
    if not empty:
        return labels
    labels = labels.copy()
    for point in np.argsort(-apart, kind="stable").tolist():
        if sizes[labels[point]] > 1:
            sizes[labels[point]] -= 1
            labels[point] = empty.pop()
            if not empty:
                break
    return labels
