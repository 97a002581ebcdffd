r"""k-means of points of which only inner products are known.

With the Gram matrix K of the points, and a matrix M whose rows average the members of a cluster, the squared distance
of point i to the mean of cluster c is

    K_ii - 2 (M K)_ci + (M K M^T)_cc.

M has one number per point, so a round of Lloyd's takes n^2 additions where points of n dimensions take n^2 k
multiplications, and K needs no eigenvectors. Groups of more than
:data:`onnxfold.statistics.row_parts.WIDE` channels, whose clusters are almost as many as they are, are clustered so.
"""

from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from onnxfold.cluster.gram import Points
from onnxfold.cluster.partition import Labels, check_clusters
from onnxfold.statistics.row_parts import parts

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
