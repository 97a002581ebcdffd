"""Correlations of channels that a fold puts into one cluster, on test images.

Pearson's correlation of what leaves a layer's BatchNormalization, or the layer where it has none, over images and
positions: the mean over pairs of channels in one cluster, over pairs in different ones, and the mean over channels of
the largest that a channel has with another. Channels that no cluster takes, and dead ones, do not count.

Reference: the matched channels of arXiv 2502.10216.
"""

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.folded import FoldedNetwork, Matrix, alive, channel_covariances
from benchmarks.accuracy.networks import Images


def cluster_correlations(fold: FoldedNetwork, images: Images) -> list[tuple[str, float, float, float]]:
    """Return layers with the three means on images of shape (n, ...), in the order of the graph."""
    covariances = channel_covariances(fold.original, [layer.tensor for layer in fold.layers], images)
    return [(x.name, *means(covariances[x.tensor][np.ix_(x.before, x.before)], x.labels)) for x in fold.layers]


def means(covariance: Matrix, labels: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """Return the mean correlation within clusters, between them, and of each channel with its closest.

    Parameters
    ----------
    covariance : ndarray of shape (n, n)
        Of the channels.
    labels : ndarray of int, shape (n,)
        Cluster of each channel, -1 for none.

    Returns
    -------
    tuple of float
        NaN where there is no such pair.
    """
    variances = covariance.diagonal()
    counted = (labels >= 0) & alive(variances)
    spread = np.sqrt(variances[counted])
    correlation = covariance[np.ix_(counted, counted)] / np.outer(spread, spread)
    alike = labels[counted][:, None] == labels[counted][None, :]
    others = ~np.eye(len(spread), dtype=bool)
    closest = np.where(others, correlation, -1.0).max(axis=1)
    within, between = correlation[alike & others], correlation[~alike]
    return _mean(within), _mean(between), _mean(closest)


def _mean(values: Matrix) -> float:
    return float(values.mean()) if values.size else float("nan")
