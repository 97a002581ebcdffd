r"""The algebra of least-squares compensation.

A consumer W reads x (n channels) in the original network and x' (k channels) in the folded one. The best linear
estimate of x from x', pulled towards the plain fold U by a ridge, is

    B = argmin_B  E||(x - E x) - B (x' - E x')||^2 + lambda ||B - U||^2
      = (C_xx' + lambda U) (C_x'x' + lambda I)^-1,      lambda = ridge * trace(C_x'x') / k

and the consumer becomes W B. Where x = U x' holds exactly (merged duplicates), B = U.

A convolution sees more than one position, and what the folded channels lack at one position their neighbours often
show. So what W B leaves of the consumer's output, r, is regressed on the whole patches p of x' that it reads,

    D = argmin_D  E||(r - E r) - D (p - E p)||^2 + lambda ||D||^2 ,

and the consumer becomes W B + D.
"""

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.channel_moments import Samples


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
        variance = np.trace(gram) / len(gram)
        strength = ridge * variance
        # What is left of a variance far below the mean square is rounding.
        noise = np.finfo(np.float32).eps * np.trace(self._yy) / count / len(gram) + np.finfo(np.float32).tiny
        if not (np.isfinite(variance) and variance > noise and np.isfinite(cross).all()):
            return plain
        gram[np.diag_indices_from(gram)] += strength
        try:
            factor = cho_factor(gram, lower=True, check_finite=False)
        except LinAlgError:
            return plain
        solution: Matrix = cho_solve(factor, (cross + strength * plain).T, check_finite=False).T
        return solution


def ridge_regression(patches: Samples, residual: Samples, ridge: float) -> Samples:
    """Return D of shape (m, d); zeros where the samples say nothing.

    Parameters
    ----------
    patches : ndarray of shape (S, d)
        What is read; centred in place.
    residual : ndarray of shape (S, m)
        What is to be added to the output; centred in place.
    ridge : float
        Strength relative to the mean variance of the patches.
    """
    samples, width = patches.shape
    patches -= patches.mean(axis=0)
    residual -= residual.mean(axis=0)
    strength = ridge * float(np.vdot(patches, patches)) / width
    if not np.isfinite(strength) or strength <= np.finfo(np.float32).tiny or not np.isfinite(residual).all():
        return np.zeros((residual.shape[1], width), np.float32)
    # Of the two equal forms P^T (P P^T + s I)^-1 R = (P^T P + s I)^-1 P^T R the one with the smaller matrix.
    dual = samples < width
    gram = patches @ patches.T if dual else patches.T @ patches
    gram[np.diag_indices_from(gram)] += np.float32(strength)
    try:
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:  # float32 cannot tell some patches apart
        return np.zeros((residual.shape[1], width), np.float32)
    right = residual if dual else patches.T @ residual
    solved = cho_solve(factor, right, check_finite=False)
    found: Samples = (patches.T @ solved if dual else solved).T.astype(np.float32)
    return found
