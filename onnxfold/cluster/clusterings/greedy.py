r"""Greedy pairs: repeatedly merge the two most similar channels.

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

import numpy as np

from onnxfold.cluster.clusterings.agglomerative import Vector, agglomerate, squared_distances
from onnxfold.cluster.gram import Points
from onnxfold.cluster.partition import Labels, check_clusters

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
