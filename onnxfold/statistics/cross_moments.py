"""Second moments of pairs of vectors, accumulated over batches and guarded against cancellation."""

import numpy as np

from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.channel_moments import Samples

#: Products of so many samples are added up in float32; the sums of these in float64.
_CHUNK = 8192


class CrossMoments:
    """Covariances of (x, y), each shifted by the mean of its first batch.

    E[x y] - E[x] E[y] loses all digits where means are large beside deviations. The shift makes the means small before
    anything is multiplied.

    Parameters
    ----------
    n, k : int
        Number of channels of x and y.
    """

    def __init__(self, n: int, k: int) -> None:
        self.count = 0
        self._shift_x, self._shift_y = np.zeros(n, np.float32), np.zeros(k, np.float32)
        self._sum_x, self._sum_y = np.zeros(n), np.zeros(k)
        self._xy, self._yy = np.zeros((n, k)), np.zeros((k, k))

    def add(self, x: Samples, y: Samples) -> None:
        """Add samples of shape (S, n) and (S, k)."""
        if not len(x):
            return
        if self.count == 0:
            self._shift_x, self._shift_y = _mean(x), _mean(y)
        self.count += len(x)
        for start in range(0, len(x), _CHUNK):
            a = x[start : start + _CHUNK] - self._shift_x
            b = a if y is x else y[start : start + _CHUNK] - self._shift_y
            self._sum_x += a.sum(axis=0, dtype=np.float64)
            self._sum_y += b.sum(axis=0, dtype=np.float64)
            self._xy += a.T @ b
            if y is not x:
                self._yy += b.T @ b

    @property
    def cross(self) -> Matrix:
        """Covariance of x and y, shape (n, k)."""
        return self._centred(self._xy, self._sum_x, self._sum_y)

    @property
    def gram(self) -> Matrix:
        """Covariance of y, shape (k, k)."""
        return self._centred(self._yy, self._sum_y, self._sum_y)

    @property
    def mean_y(self) -> Matrix:
        """Mean of y, shape (k,)."""
        mean: Matrix = self._shift_y + self._sum_y / max(self.count, 1)
        return mean

    def _centred(self, products: Matrix, left: Matrix, right: Matrix) -> Matrix:
        count = max(self.count, 1)
        centred: Matrix = products / count - np.outer(left / count, right / count)
        return centred


def _mean(samples: Samples) -> Samples:
    mean: Samples = samples.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean
