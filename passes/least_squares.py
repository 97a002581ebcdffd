r"""The algebra of least-squares compensation.

A consumer W reads x (n channels) in the original network and x' (k channels) in the folded one. The best linear
estimate of x from x', pulled towards the plain fold U by a ridge, is

    B = argmin_B  E||(x - E x) - B (x' - E x')||^2 + lambda ||B - U||^2
      = (C_xx' + lambda U) (C_x'x' + lambda I)^-1,      lambda = ridge * trace(C_x'x') / k

and the consumer becomes W B. Where x = U x' holds exactly (merged duplicates), B = U.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

Matrix = npt.NDArray[np.float64]
Samples = npt.NDArray[np.float32]


class CrossMoments:
    """First and second moments of (x, x'), accumulated over batches of samples.

    Parameters
    ----------
    n, k : int
        Number of channels of x and x'.
    """

    def __init__(self, n: int, k: int) -> None:
        self.count = 0
        self._sum_x = np.zeros(n)
        self._sum_y = np.zeros(k)
        self._xy = np.zeros((n, k))
        self._yy = np.zeros((k, k))

    def add(self, x: Samples, y: Samples) -> None:
        """Add samples of shape (S, n) and (S, k)."""
        self.count += len(x)
        self._sum_x += x.sum(axis=0, dtype=np.float64)
        self._sum_y += y.sum(axis=0, dtype=np.float64)
        self._xy += x.T @ y
        self._yy += y.T @ y

    def solve(self, plain: Matrix, ridge: float) -> Matrix:
        """Return B of shape (n, k).

        Parameters
        ----------
        plain : ndarray of shape (n, k)
            U, what B is pulled towards.
        ridge : float
            Strength relative to the mean variance of x'.
        """
        count = max(self.count, 1)
        mean_x, mean_y = self._sum_x / count, self._sum_y / count
        cross = self._xy / count - np.outer(mean_x, mean_y)
        gram = self._yy / count - np.outer(mean_y, mean_y)
        strength = ridge * np.trace(gram) / len(gram)
        if not np.isfinite(strength) or strength <= np.finfo(np.float32).tiny or not np.isfinite(cross).all():
            return plain
        gram[np.diag_indices_from(gram)] += strength
        factor = cho_factor(gram, lower=True, check_finite=False)
        solution: Matrix = cho_solve(factor, (cross + strength * plain).T, check_finite=False).T
        return solution


class ChannelMoments:
    """Mean and variance per channel, accumulated over batches."""

    def __init__(self, batches: Iterable[Samples], axis: int) -> None:
        count, total, squares = 0, 0.0, 0.0
        for values in batches:
            rest = tuple(i for i in range(values.ndim) if i != axis % values.ndim)
            # Shifted by the first batch's mean: variances of small, offset channels would cancel otherwise.
            if count == 0:
                self._shift = values.mean(axis=rest, keepdims=True)
            centred = values - self._shift
            count += values.size // values.shape[axis]
            total = total + centred.sum(axis=rest, dtype=np.float64)
            squares = squares + np.square(centred).sum(axis=rest, dtype=np.float64)
        offset = total / count
        self.mean: Matrix = self._shift.reshape(-1).astype(np.float64) + offset
        self.variance: Matrix = np.maximum(squares / count - offset**2, 0.0)
