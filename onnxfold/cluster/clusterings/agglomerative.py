r"""Agglomerative clustering of weighted points: merge the nearest two clusters until k are left.

These are scipy's hierarchies of all points, a weight of m being m points in one place; such points merge first.

Greedy pairs repeatedly merge the two most similar channels. Points are compared by direction only: each is scaled to
unit length, a cluster is the mean of its members' unit vectors, and the two clusters whose means are nearest are
merged. For centred points the distance of two unit vectors is sqrt(2 - 2 r) with r the cosine of the two channels'
deviations from the mean channel: the pair with the highest r goes first, as in ZipIt's greedy matching, which compares
activations by their correlation.

References
----------
Ward, "Hierarchical grouping to optimize an objective function", 1963, doi:10.1080/01621459.1963.10500845.
Stoica et al., "ZipIt! Merging Models from Different Tasks without Training", arXiv 2305.03053.
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
