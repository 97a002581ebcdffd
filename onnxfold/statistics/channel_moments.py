"""Mean and variance per channel, and samples of channels, from batches of activations."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Array, Matrix

Samples = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


class ChannelMoments:
    """Mean and variance per position of an axis, accumulated over batches."""

    def __init__(self, batches: Iterable[Array], axis: int) -> None:
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


def unit_samples(values: Array, axis: int, positions: Positions, stride: int) -> Samples:
    """Return samples of units, shape (S, n_units).

    Parameters
    ----------
    values : ndarray
        Activations.
    axis : int
        Their channel axis.
    positions : ndarray of shape (n_units, r)
        Where each unit lies on it; every occurrence is a sample of its own.
    stride : int
        Take every stride-th place.
    """
    moved = np.moveaxis(values, axis, -1)
    if stride > 1:  # without a copy of everything
        places = np.arange(0, values.size // values.shape[axis], stride)
        moved = moved[np.unravel_index(places, moved.shape[:-1])]
    flat = moved.reshape(-1, values.shape[axis])
    taken = flat[:, positions.reshape(-1)].reshape(len(flat), *positions.shape)
    return np.ascontiguousarray(taken.transpose(0, 2, 1).reshape(-1, len(positions)), np.float32)


def stride_for(batches: list[Array], units: int, samples: int) -> int:
    """Return the stride at which batches of activations give about `samples` samples of `units` units."""
    return max(1, -(-(sum(part.size for part in batches) // units) // samples))
