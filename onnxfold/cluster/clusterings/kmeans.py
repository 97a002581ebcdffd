"""Weighted k-means with exactly k clusters, started from Ward's hierarchy: scikit-learn's; of wide groups our own."""

import warnings

import numpy as np

from onnxfold.cluster.gram import Points, Vector, cut_tree
from onnxfold.cluster.partition import Labels, check_clusters
from onnxfold.machine.threads import thread_pools
from onnxfold.statistics.samples import parts

_MAX_ITERATIONS = 50
#: Channels of a group that scikit-learn clusters, at most.
_NARROW = 4_096


def kmeans(points: Points, weights: Vector, k: int) -> Labels:
    """Cluster weighted points.

    Lloyd's iterations start from the means of Ward's hierarchical clusters. With as many clusters as a fold keeps (most
    have one to three members), random starts, k-means++ included, end in much worse minima.
    """
    n = len(points)
    check_clusters(k, n)
    if k in (1, n):
        return np.arange(n) % k
    cluster = _by_coordinates if n <= _NARROW else _by_products
    return cluster(points, weights, cut_tree(points.tree, k), k)


def _by_coordinates(points: Points, weights: Vector, labels: Labels, k: int) -> Labels:
    """Improve clusters by scikit-learn."""
    # Not at the top: half of a short command's time would go into imports that most methods never need.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    places = points.coordinates
    means = np.stack([np.average(places[labels == c], axis=0, weights=weights[labels == c]) for c in range(k)])
    # One thread: several add up cluster sums in an order that changes from run to run.
    with thread_pools().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than k
        model = KMeans(k, init=means, n_init=1, max_iter=_MAX_ITERATIONS).fit(places, sample_weight=weights)
    nearest = np.asarray(model.labels_, np.int64)
    _fill_empty(nearest, np.square(places - model.cluster_centers_[nearest]).sum(axis=1), k)
    return nearest


def _by_products(points: Points, weights: Vector, labels: Labels, k: int) -> Labels:
    """Improve clusters by inner products: a round takes n^2 additions, in place of n^2 k multiplications."""
    nearest, apart = np.empty_like(labels), np.empty(len(points))
    for _ in range(_MAX_ITERATIONS):
        cross, squares = points.mean_products(labels, weights, k)
        for part in parts(len(points)):
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
