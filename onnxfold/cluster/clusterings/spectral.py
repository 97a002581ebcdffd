"""Spectral clustering of weighted points; docs/mathematics.md has the derivation, and the sources."""

import numpy as np
from scipy.linalg import eigh

from onnxfold.cluster.clusterings.kmeans import kmeans
from onnxfold.cluster.gram import Points, Vector
from onnxfold.cluster.partition import Labels, check_clusters
from onnxfold.graph.tensors import Matrix

_NEIGHBOUR = 7
#: Least scale of a neighbourhood, relative to the largest distance: where many points coincide.
_LEAST_SCALE = 1e-6


def spectral(points: Points, weights: Vector, k: int) -> Labels:
    """Cluster the leading eigenvectors of the normalised affinity."""
    n = len(points)
    check_clusters(k, n)
    if k in (1, n):
        return np.arange(n) % k
    embedded = embed(affinity(points), weights, k)
    return kmeans(Points(embedded @ embedded.T), weights, k)


def affinity(points: Points) -> Matrix:
    """Return the affinities of at least two points, shape (n, n), in [0, 1], with the scale of each neighbourhood."""
    from scipy.spatial.distance import squareform

    distances = squareform(points.distances)
    neighbour = min(_NEIGHBOUR, len(points) - 1)  # the nearest is the point itself
    scale = np.partition(distances, neighbour, axis=1)[:, neighbour]
    largest = float(distances.max())
    scale = np.maximum(scale, _LEAST_SCALE * largest if largest > 0.0 else 1.0)
    return np.asarray(np.exp(-(distances**2) / np.multiply.outer(scale, scale)))


def embed(affinities: Matrix, weights: Vector, k: int) -> Matrix:
    """Return each point's entries in the k leading eigenvectors, scaled to unit length, shape (n, k)."""
    n = len(affinities)
    factor = np.sqrt(weights / (affinities @ weights))
    vectors = eigh(affinities * np.multiply.outer(factor, factor), subset_by_index=[n - k, n - 1])[1]
    length = np.linalg.norm(vectors, axis=1)
    return np.asarray(vectors / np.where(length > 0.0, length, 1.0)[:, None])
