r"""ZipIt!: greedy merges of the most correlated channels, also of two channels of one network.

A merged channel is as like another one as the less like of its members, times alpha, so that channels which were merged
already wait. Of every network only a part beta of what has to go may be merged within itself.

References
----------
Stoica et al., "ZipIt! Merging Models from Different Tasks without Training", arXiv 2305.03053, sections 4.1 and 4.3;
alpha and beta are the defaults of its code.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnxfold.cluster.partition import Labels
from onnxfold.graph.tensors import Matrix

ALPHA, BETA = 0.3, 0.125


def correlations(covariances: Sequence[Matrix]) -> Matrix:
    """Return the mean correlation of activations over what the consumers read."""
    matrices = []
    for covariance in covariances:
        deviation = np.sqrt(np.maximum(covariance.diagonal(), 0.0))
        scale = np.maximum(deviation * deviation[:, None], 1e-7 * max(float(deviation.max()) ** 2, 1e-30))
        matrices.append(covariance / scale)
    return np.asarray(np.mean(matrices, axis=0))


def zip_channels(likeness: Matrix, sources: Labels, k: int) -> Labels:
    """Merge pairs until k channels are left."""
    n, networks = len(likeness), max(len(np.unique(sources)), 1)
    alike = np.array(likeness, np.float64)
    np.fill_diagonal(alike, -np.inf)
    labels, alive = np.arange(n), np.ones(n, bool)
    budget = np.full(int(sources.max(initial=0)) + 1, int((n - k) // networks * BETA + 1e-4))
    origin = sources.copy()
    for _ in range(n - k):
        place = int(alike.argmax())
        if alike.flat[place] == -np.inf:  # every network has merged as much within itself as it may
            alike = _open_likeness(likeness, alive)
            place = int(alike.argmax())
        u, v = sorted((place // n, place % n))
        labels[labels == v] = u
        alive[v] = False
        within = origin[u] == origin[v]
        both = np.minimum(alike[u], alike[v]) * ALPHA
        alike[u], alike[:, u] = both, both
        alike[u, u] = -np.inf
        alike[v], alike[:, v] = -np.inf, -np.inf
        if within:
            budget[origin[u]] -= 1
            if budget[origin[u]] <= 0:
                same = np.flatnonzero(origin == origin[u])
                alike[np.ix_(same, same)] = -np.inf
    return labels


def _open_likeness(likeness: Matrix, alive: npt.NDArray[np.bool_]) -> Matrix:
    """Return the likeness of what is left, without limits."""
    open_pairs = np.where(alive & alive[:, None], likeness, -np.inf)
    np.fill_diagonal(open_pairs, -np.inf)
    return open_pairs
