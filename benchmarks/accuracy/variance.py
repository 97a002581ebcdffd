r"""Variance ratios of folded layers, measured on test images.

The ratio of a layer is the mean over its original channels i of Var(x'_c(i)) / Var(x_i), with c(i) the cluster of i and
x what leaves the layer's BatchNormalization, or the layer where it has none. Near one is healthy, below one the
activations have collapsed, above they overshoot. Channels that no cluster takes, and dead ones, do not count.

Reference: REPAIR, arXiv 2211.08403; used for folding in arXiv 2502.10216.
"""

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.folded import FoldedNetwork, alive, channel_covariances
from benchmarks.accuracy.networks import Images

Vector = npt.NDArray[np.float64]


def variance_ratios(fold: FoldedNetwork, images: Images) -> list[tuple[str, float]]:
    """Return layers with their variance ratios on images of shape (n, ...), in the order of the graph."""
    tensors = [layer.tensor for layer in fold.layers]
    dense, after = (channel_covariances(view, tensors, images) for view in (fold.original, fold.folded))
    variances = [(dense[x.tensor].diagonal()[x.before], after[x.tensor].diagonal()[x.after]) for x in fold.layers]
    return [(x.name, ratio(*pair, x.labels)) for x, pair in zip(fold.layers, variances, strict=True)]


def ratio(dense: Vector, folded: Vector, labels: npt.NDArray[np.int64]) -> float:
    """Return the mean ratio of variances over the original channels.

    Parameters
    ----------
    dense : ndarray of shape (n,)
        Variances of the original channels.
    folded : ndarray of shape (k,)
        Variances of the clusters.
    labels : ndarray of int, shape (n,)
        Cluster of each channel, -1 for none.
    """
    counted = (labels >= 0) & alive(dense)
    return float((folded[labels[counted]] / dense[counted]).mean())
