r"""Agglomerative clustering of weighted points: merge the nearest two clusters until k are left.

The distance of a merged cluster u + v to another one s follows from the distances before the merge (Lance and
Williams), with a, b, c the weights of u, v, s. In squared distances D for Ward, in distances d for the others:

    ward      D(u+v, s) = ((a + c) D(u,s) + (b + c) D(v,s) - c D(u,v)) / (a + b + c),  D(i,j) = 2ab/(a+b) |x_i - x_j|^2
    average   d(u+v, s) = (a d(u,s) + b d(v,s)) / (a + b)
    complete  d(u+v, s) = max(d(u,s), d(v,s))
    single    d(u+v, s) = min(d(u,s), d(v,s))

With unit weights these are scipy's hierarchies. scipy takes no weights, and cuts a tree at a height, which gives
fewer than k clusters where several merges have the same height; here merges are counted, and of equally near pairs
the one with the lowest indices is merged first. A weight of m says the same as m points in one place.

References
----------
Lance and Williams, "A general theory of classificatory sorting strategies", 1967, doi:10.1093/comjnl/9.4.373.
Ward, "Hierarchical grouping to optimize an objective function", 1963, doi:10.1080/01621459.1963.10500845.

Greedy pairs: repeatedly merge the two most similar channels.

Points are compared by direction only. Each is scaled to unit length; a cluster is the weighted mean of its members'
unit vectors, and the two clusters whose means are nearest are merged. In squared distances D, with weights a and b,

    D(u+v, s) = (a D(u,s) + b D(v,s)) / (a + b) - a b D(u,v) / (a + b)^2.

For points from :func:`onnxfold.cluster.gram.rotate`, which are centred, the distance of two unit vectors is
sqrt(2 - 2 r) with r the cosine of the two channels' deviations from the mean channel: the pair with the highest r goes
first, as in ZipIt's greedy matching, which compares activations by their correlation.

References
----------
Stoica et al., "ZipIt! Merging Models from Different Tasks without Training", arXiv 2305.03053.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from onnxfold.cluster.gram import Points
from onnxfold.cluster.partition import Labels, check_clusters

Vector = npt.NDArray[np.float64]

#: (d(u,s), d(v,s), d(u,v), weight of u, weight of v, weights of s) -> d(u+v, s), for all clusters s at once.
Linkage = Callable[[Vector, Vector, float, float, float, Vector], Vector]

#: Rounding of |x|^2 + |y|^2 - 2 xy, relative to |x|^2 + |y|^2.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


def ward_linkage(points: Points, weights: Vector, k: int, *, seed: int) -> Labels:
    """Merge the two clusters whose union adds least to the sum of squared distances from the cluster means."""
    check_clusters(k, len(points))
    mass = 2.0 * np.multiply.outer(weights, weights) / np.add.outer(weights, weights)
    return agglomerate(mass * squared_distances(points), weights, k, _ward)


def complete_linkage(points: Points, weights: Vector, k: int, *, seed: int) -> Labels:
    """Merge the two clusters with the smallest largest distance of members; see :func:`ward_linkage`.

    Weights change nothing: a maximum does not count.
    """
    check_clusters(k, len(points))
    return agglomerate(np.sqrt(squared_distances(points)), weights, k, lambda us, vs, *_: np.maximum(us, vs))


def average_linkage(points: Points, weights: Vector, k: int, *, seed: int) -> Labels:
    """Merge the two clusters with the smallest mean distance of members; see :func:`ward_linkage`."""
    check_clusters(k, len(points))
    return agglomerate(np.sqrt(squared_distances(points)), weights, k, _average)


def single_linkage(points: Points, weights: Vector, k: int, *, seed: int) -> Labels:
    """Merge the two clusters with the smallest smallest distance of members; see :func:`ward_linkage`.

    Weights change nothing: a minimum does not count.
    """
    check_clusters(k, len(points))
    return agglomerate(np.sqrt(squared_distances(points)), weights, k, lambda us, vs, *_: np.minimum(us, vs))


def _ward(us: Vector, vs: Vector, uv: float, a: float, b: float, c: Vector) -> Vector:
    merged: Vector = ((a + c) * us + (b + c) * vs - c * uv) / (a + b + c)
    return merged


def _average(us: Vector, vs: Vector, uv: float, a: float, b: float, c: Vector) -> Vector:
    merged: Vector = (a * us + b * vs) / (a + b)
    return merged


def squared_distances(points: Points) -> Points:
    """Return all squared Euclidean distances, shape (n, n); zero where points agree up to rounding."""
    gram = points @ points.T
    squares = np.add.outer(gram.diagonal(), gram.diagonal())
    distance: Points = squares - 2.0 * gram
    distance[distance <= _ROUNDING * squares] = 0.0
    np.fill_diagonal(distance, 0.0)
    return distance


def agglomerate(distances: Points, weights: Vector, k: int, linkage: Linkage) -> Labels:
    """Cluster by a linkage of the Lance-Williams kind."""
    current, weight = distances.copy(), np.array(weights, np.float64)

    def merge(u: int, v: int) -> Vector:
        row = linkage(current[u], current[v], float(current[u, v]), float(weight[u]), float(weight[v]), weight)
        current[u], current[:, u] = row, row
        weight[u] += weight[v]
        return row

    return merge_nearest(distances, k, merge)


def merge_nearest(distances: Points, k: int, merge: Callable[[int, int], Vector]) -> Labels:
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
    return np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)


#: Points nearer to the origin than this, relative to the farthest one, have no direction: they stay there.
_NO_DIRECTION = 1e-9


def greedy(points: Points, weights: Vector, k: int, *, seed: int) -> Labels:
    """Merge nearest pairs of normalised points, one at a time."""
    check_clusters(k, len(points))
    length = np.linalg.norm(points, axis=1)
    has_direction = length > _NO_DIRECTION * length.max()
    unit = np.where(has_direction[:, None], points / np.where(has_direction, length, 1.0)[:, None], 0.0)
    return agglomerate(squared_distances(unit), weights, k, _centroid)


def _centroid(us: Vector, vs: Vector, uv: float, a: float, b: float, c: Vector) -> Vector:
    merged: Vector = (a * us + b * vs) / (a + b) - a * b * uv / (a + b) ** 2
    return merged
