r"""Covariances that are trusted as far as their samples go.

The covariance S of few samples is short of rank: some direction has no variance on them, so a fold that gives it up
looks free. Variances are known from few samples, how channels go together is not. S is therefore shrunk,

    C = (1 - a) S + a T,      T_ij = sqrt(v_i v_j) for exact duplicates i and j, 0 for others,      (1)

by the intensity that minimises the expected squared error of C,

    a = E||S - E S||^2 / ||S||^2      off the diagonal.                                             (2)

The numerator is the variance of S. It is measured between two halves of the samples, A and B, as ||S_A - S_B||^2 / 4:
positions of one image are no independent samples, images are. Exact duplicates stay duplicates in C, whatever was seen
of them, so they stay free.

What is generated has another covariance than data, however many samples there are; the part of S that this makes
doubtful is stated with the inputs (:class:`Doubt`). Where the variances are doubtful, too, v_i = trace(S) / n for all
of them, else S_ii.

References
----------
Ledoit and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", 2004.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.moments import SplitMoments
from onnxfold.statistics.samples import Samples

Classes = npt.NDArray[np.integer]

#: Below this intensity samples are ample unless they are fewer than channels: what they say stays as it is.
_AMPLE = 0.3
#: The most that is taken from a covariance: even a single sample tells its scale.
_MOST = 0.95


@dataclass(frozen=True)
class Doubt:
    """How far inputs may differ from data."""

    part: float = 0.0  # the part of covariances that more inputs of their kind would not make sure, in [0, 1)
    of_variances: bool = False  # whether the channels' variances may be others, too


#: Of data.
NO_DOUBT = Doubt()


def intensity(noise: float, samples: int, covariance: Matrix, doubt: float = 0.0) -> float:
    """Return the intensity of the shrinkage."""
    signal = float(np.vdot(covariance, covariance)) - float(np.square(np.diag(covariance)).sum())
    optimum = min(noise / signal, 1.0) if signal > 0.0 else 0.0
    if optimum < _AMPLE and samples >= len(covariance):
        optimum = 0.0
    return min(1.0 - (1.0 - optimum) * (1.0 - doubt), _MOST) if np.isfinite(signal) else 0.0


def shrink_covariance(
    covariance: Matrix, shrinkage: float, duplicates: Classes | None = None, *, level: bool = False
) -> Matrix:
    """Return (1)."""
    n = len(covariance)
    own = np.arange(n) if duplicates is None else duplicates
    seen = np.maximum(np.diag(covariance), 0.0)
    variances = np.full(n, seen.mean()) if level and n else seen
    estimate: Matrix = (1.0 - shrinkage) * covariance
    order = np.argsort(own, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(own[order])) + 1):
        estimate[np.ix_(alike, alike)] += shrinkage * np.sqrt(np.outer(variances[alike], variances[alike]))
    return estimate


def split_moments(batches: Iterable[Samples], n: int) -> SplitMoments:
    """Return the moments of samples."""
    moments = SplitMoments(n)
    for batch in batches:
        moments.take(batch)
    moments.finish()
    return moments
