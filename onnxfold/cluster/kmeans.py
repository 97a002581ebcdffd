"""Weighted k-means with exactly k clusters, the same for the same seed."""

import warnings

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from onnxfold.cluster.gram import Points
from onnxfold.cluster.partition import Labels


def kmeans(points: Points, weights: npt.NDArray[np.float64], k: int, *, seed: int, restarts: int = 4) -> Labels:
    """Cluster weighted points.

    Parameters
    ----------
    points : ndarray of shape (n, d)
        Points, for instance from :func:`onnxfold.cluster.gram.rotate`.
    weights : ndarray of shape (n,)
        Multiplicity of each point.
    k : int
        Number of clusters, 1 <= k <= n.
    seed : int
        Seed of the k-means++ starts.
    restarts : int
        Number of starts; the best is kept.

    Returns
    -------
    ndarray of shape (n,)
        Labels; every one of the k clusters has a member.
    """
    n = len(points)
    if not 1 <= k <= n:
        raise ValueError(f"k={k} should be between 1 and n_points={n}")
    if k == n:
        return np.arange(n)
    if k == 1:
        return np.zeros(n, np.int64)
    # One thread: several add up cluster sums in an order that changes from run to run.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than k: repaired below
        model = KMeans(n_clusters=k, n_init=restarts, random_state=seed, max_iter=100).fit(points, sample_weight=weights)
    labels = np.asarray(model.labels_, np.int64)
    return fill_empty(points, labels, k)


def fill_empty(points: Points, labels: Labels, k: int) -> Labels:
    """Give every one of k clusters a member: the points farthest from their mean become clusters of their own."""
    labels = labels.copy()
    for cluster in range(k):
        if (labels == cluster).any():
            continue
        sizes = np.bincount(labels, minlength=k)
        means = np.stack([points[labels == c].mean(axis=0) if sizes[c] else np.zeros(points.shape[1]) for c in range(k)])
        distance = np.linalg.norm(points - means[labels], axis=1)
        distance[sizes[labels] < 2] = -1.0
        labels[int(np.argmax(distance))] = cluster
    return labels
