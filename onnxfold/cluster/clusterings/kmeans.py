"""Weighted k-means with exactly k clusters, started from Ward's hierarchy."""

import warnings
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from onnxfold.cluster.gram import Points
from onnxfold.cluster.partition import Labels

_MAX_ITERATIONS = 50


def kmeans(points: Points, weights: npt.NDArray[np.float64], k: int, *, seed: int) -> Labels:
    """Cluster weighted points.

    Lloyd's iterations start from the means of Ward's hierarchical clusters. With as many clusters as a fold keeps (most
    have one to three members), random starts, k-means++ included, end in much worse minima.
    """
    # Not at the top: half of a short command's time would go into imports that most methods never need.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    n = len(points)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} should be between 1 and n_points={n}")
    if k == n:
        return np.arange(n)
    if k == 1:
        return np.zeros(n, np.int64)
    start = fill_empty(points, ward(points, k), k)
    means = _means(points, weights, start, k)
    # One thread: several add up cluster sums in an order that changes from run to run.
    with _thread_pools().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than k: repaired below
        model = KMeans(n_clusters=k, init=means, n_init=1, random_state=seed, max_iter=_MAX_ITERATIONS)
        labels = model.fit(points, sample_weight=weights).labels_
    return fill_empty(points, np.asarray(labels, np.int64), k)


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the thread pools of the libraries that are loaded; looking for them takes longer than most clusterings."""
    return ThreadpoolController()


def ward(points: Points, k: int) -> Labels:
    """Return the labels 0 .. k-1 of Ward's hierarchy cut at k clusters (fewer where points coincide)."""
    from scipy.cluster.hierarchy import fcluster, linkage

    squares = np.einsum("ij,ij->i", points, points)
    distance = squares[:, None] + squares[None, :] - 2.0 * (points @ points.T)
    upper = distance[np.triu_indices(len(points), 1)]
    tree = linkage(np.sqrt(np.maximum(upper, 0.0)), "ward")
    return np.asarray(fcluster(tree, k, "maxclust"), np.int64) - 1


def _means(points: Points, weights: npt.NDArray[np.float64], labels: Labels, k: int) -> Points:
    sums = np.zeros((k, points.shape[1]))
    np.add.at(sums, labels, points * weights[:, None])
    return sums / np.bincount(labels, weights=weights, minlength=k)[:, None]


def fill_empty(points: Points, labels: Labels, k: int) -> Labels:
    """Give every one of k clusters a member: the points farthest from their mean become separate clusters."""
    labels = labels.copy()
    for cluster in range(k):
        if (labels == cluster).any():
            continue
        sizes = np.bincount(labels, minlength=k)
        means = np.stack(
            [points[labels == c].mean(axis=0) if sizes[c] else np.zeros(points.shape[1]) for c in range(k)]
        )
        distance = np.linalg.norm(points - means[labels], axis=1)
        distance[sizes[labels] < 2] = -1.0
        labels[int(np.argmax(distance))] = cluster
    return labels
