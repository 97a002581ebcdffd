r"""The algebra of least-squares compensation.

A consumer W reads x (n channels) in the original network and x' (k channels) in the folded one. The best linear
estimate of x from x', pulled towards the plain fold U by a ridge, is

    B = argmin_B  E||(x - E x) - B (x' - E x')||^2 + lambda ||B - U||^2
      = U + C_rx' (C_x'x' + lambda I)^-1,      r = x - U x',   lambda = ridge * trace(C_x'x') / k

and the consumer becomes W B. A consumer without a bias has to give the means, too: moments are about zero there. Where
x = U x' holds exactly (merged duplicates), B = U. The form with r is the one that is computed: it corrects what is
missing, and amplifies no rounding where little is.

A convolution sees more than one position, and what the folded channels lack at one position their neighbours often
show. So what W B leaves of the consumer's output, r, is regressed on the whole patches p of x' that it reads,

    D = argmin_D  E||(r - E r) - D (p - E p)||^2 + lambda ||D||^2 ,

and the consumer becomes W B + D.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from onnxfold.channels.operators import Window
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.machine.threads import usable_cores
from onnxfold.statistics.moments import CrossMoments, remove_mean
from onnxfold.statistics.samples import Samples

#: Columns of a Gram matrix that one thread multiplies at a time.
_BLOCK = 256
#: Deviations below this fraction of the mean are rounding of float32 activations.
_NOISE = 4.0 * float(np.finfo(np.float32).eps)


def correction(residuals: CrossMoments, ridge: float, *, has_bias: bool = True) -> Matrix:
    """Return D = B - U of shape (n, k): what the plain fold lacks, from what it leaves.

    Zeros where the samples say nothing. In-sample, D x' is never larger than the residual it corrects, so a residual
    that is rounding gives a correction that is rounding, however singular the moments are.
    """
    cross, gram = residuals.cross, residuals.gram
    if not has_bias:
        cross += np.outer(residuals.mean_x, residuals.mean_y)
        gram += np.outer(residuals.mean_y, residuals.mean_y)
    variance = np.trace(gram) / len(gram)
    # What is left of a variance far below the mean square is rounding.
    noise = _NOISE**2 * float(np.square(residuals.mean_y).mean()) + np.finfo(np.float32).tiny
    if not (np.isfinite(variance) and variance > noise and np.isfinite(cross).all()):
        return np.zeros_like(cross)
    gram[np.diag_indices_from(gram)] += ridge * variance
    try:
        factor = cho_factor(gram, lower=True, check_finite=False)
    except LinAlgError:
        return np.zeros_like(cross)
    solution: Matrix = cho_solve(factor, cross.T, check_finite=False).T
    return solution


def decode_samples(samples: Samples, decode: Matrix) -> Samples:
    """Return U x' for samples of x', shape (S, k): shape (S, n)."""
    used = decode != 0.0
    if (used.sum(axis=1) > 1).any():
        product: Samples = samples @ decode.T.astype(samples.dtype)
        return product
    # Every channel stands for one at most: taken, not computed, so that merged duplicates leave nothing at all.
    copies: Samples = samples[:, used.argmax(axis=1)] * decode.sum(axis=1).astype(samples.dtype)
    return copies


def lower_gram(columns: Samples) -> Samples:
    """Return X^T X of shape (d, d) with zeros somewhere above the diagonal, for X of shape (S, d).

    Blocks of columns are shared out among threads. Their borders are the same for any number of threads, and so is
    every sum.
    """
    width = columns.shape[1]
    if width <= _BLOCK:
        product: Samples = columns.T @ columns
        return product
    gram = np.zeros((width, width), columns.dtype)

    def fill(start: int) -> None:
        gram[start:, start : start + _BLOCK] = columns[:, start:].T @ columns[:, start : start + _BLOCK]

    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(fill, range(0, width, _BLOCK)):  # raises what a block raised
            pass
    return gram


def ridge_regression(patches: Samples, residual: Samples, ridge: float) -> Samples:
    """Return D of shape (m, d); zeros where the samples say nothing."""
    samples, width = patches.shape
    for values in (patches, residual):
        remove_mean(values, out=values)
    strength = ridge * float(np.vdot(patches, patches)) / width
    if not np.isfinite(strength) or strength <= np.finfo(np.float32).tiny or not np.isfinite(residual).all():
        return np.zeros((residual.shape[1], width), np.float32)
    # Of the two equal forms P^T (P P^T + s I)^-1 R = (P^T P + s I)^-1 P^T R the one with the smaller matrix.
    dual = samples < width
    gram = lower_gram(patches.T if dual else patches)
    gram[np.diag_indices_from(gram)] += np.float32(strength)
    try:
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:  # float32 cannot tell some patches apart
        return np.zeros((residual.shape[1], width), np.float32)
    right = residual if dual else patches.T @ residual
    solved = cho_solve(factor, right, check_finite=False)
    coefficients: Samples = (patches.T @ solved if dual else solved).T.astype(np.float32)
    return coefficients


def read_patches(x: Array, window: Window, places: Sequence[npt.NDArray[np.int64]], sample: Array) -> Samples:
    """Return the patches that a convolution reads, shape (S, C * taps), channels first as in the rows of its weight."""
    offsets = np.indices(window.kernel).reshape(len(window.kernel), -1)
    index: list[Any] = []
    inside = np.ones((len(sample), window.taps), bool)
    for axis, place in enumerate(places):
        at = place[:, None] * window.strides[axis] - window.pads[axis] + offsets[axis] * window.dilations[axis]
        size = x.shape[2 + axis]
        inside &= (at >= 0) & (at < size)
        index.append(np.clip(at, 0, size - 1))
    # Advanced indices are separated by the slice over channels: the result is (S, taps, C).
    patches: Array = x[(sample[:, None], slice(None), *index)]
    patches = np.where(inside[:, :, None], patches, 0).astype(np.float32, copy=False)
    return np.ascontiguousarray(patches.transpose(0, 2, 1)).reshape(len(sample), -1)
