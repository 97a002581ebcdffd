"""Agglomerative clustering of weighted points: merge the nearest two clusters until k are left.

docs/mathematics.md has the derivation, and the sources.
"""

from typing import Literal

import numpy as np

from onnxfold.cluster.gram import Points, Vector, cut_tree
from onnxfold.cluster.partition import Labels, check_clusters

#: Points nearer to the origin than this, relative to the farthest one, have no direction: they stay there.
_NO_DIRECTION = 1e-9
#: The least distance of different points, relative to the largest one: copies of one are nearer.
_APART = 1e-30


def agglomerate(
    linkage: Literal["ward", "complete", "average", "single", "centroid"], points: Points, weights: Vector, k: int
) -> Labels:
    """Merge the two clusters that are nearest by a linkage, until k are left."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    check_clusters(k, len(points))
    if k == len(points):
        return np.arange(k)
    apart = squareform(points.distances)
    np.maximum(apart, _APART * (apart.max() or 1.0), out=apart)
    np.fill_diagonal(apart, 0.0)
    copies = np.repeat(np.arange(len(points)), weights.astype(np.int64))
    tree = hierarchy.linkage(squareform(apart[np.ix_(copies, copies)], checks=False), linkage)
    return cut_tree(tree, k)[np.unique(copies, return_index=True)[1]]


def greedy(points: Points, weights: Vector, k: int) -> Labels:
    """Merge nearest pairs of normalised points, one at a time."""
    length = np.sqrt(np.maximum(points.gram.diagonal(), 0.0))
    scale = np.where(length > _NO_DIRECTION * length.max(), 1.0 / np.maximum(length, np.finfo(np.float64).tiny), 0.0)
    return agglomerate("centroid", Points(points.gram * scale * scale[:, None]), weights, k)
