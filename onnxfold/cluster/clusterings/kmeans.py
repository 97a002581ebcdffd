"""Weighted k-means with exactly k clusters, by inner products, started from Ward's hierarchy."""

import numpy as np

from onnxfold.cluster.gram import Points, Vector, cut_tree
from onnxfold.cluster.partition import Labels, check_clusters
from onnxfold.statistics.samples import parts

_MAX_ITERATIONS = 50


def kmeans(points: Points, weights: Vector, k: int) -> Labels:
    """Cluster weighted points.

    Lloyd's iterations start from the means of Ward's hierarchical clusters. With as many clusters as a fold keeps (most
    have one to three members), random starts, k-means++ included, end in much worse minima.
    """
    n = len(points)
    check_clusters(k, n)
    if k in (1, n):
        return np.arange(n) % k
    labels = cut_tree(points.tree, k)
    nearest, apart = np.empty_like(labels), np.empty(n)
    for _ in range(_MAX_ITERATIONS):
        cross, squares = points.mean_products(labels, weights, k)
        for part in parts(n):
            distance = squares - 2.0 * cross[:, part].T
            nearest[part] = distance.argmin(axis=1)
            apart[part] = distance.min(axis=1) + points.gram.diagonal()[part]
        _fill_empty(nearest, apart, k)
        if np.array_equal(nearest, labels):
            break
        labels = nearest.copy()
    return labels


def _fill_empty(labels: Labels, apart: Vector, k: int) -> None:
    """Give every cluster a member, in place: the points farthest from their mean, of clusters that have more."""
    sizes = np.bincount(labels, minlength=k)
    empty = np.flatnonzero(sizes == 0).tolist()
    for point in np.argsort(-apart, kind="stable").tolist() if empty else ():
        if sizes[labels[point]] > 1:
            sizes[labels[point]] -= 1
            labels[point] = empty.pop()
            if not empty:
                break
