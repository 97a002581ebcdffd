"""Samples of channels, taken from batches of activations."""

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Array

Samples = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


def unit_samples(values: Array, axis: int, positions: Positions, stride: int) -> Samples:
    """Return samples of units, shape (S, n_units)."""
    moved = np.moveaxis(values, axis, -1)
    if stride > 1:  # without a copy of everything
        places = np.arange(0, values.size // values.shape[axis], stride)
        moved = moved[np.unravel_index(places, moved.shape[:-1])]
    flat = moved.reshape(-1, values.shape[axis])
    columns = flat[:, positions.reshape(-1)].reshape(len(flat), *positions.shape)
    return np.ascontiguousarray(columns.transpose(0, 2, 1).reshape(-1, len(positions)), np.float32)


def stride_for(batches: list[Array], units: int, samples: int) -> int:
    """Return the stride at which batches of activations give about `samples` samples of `units` units."""
    return max(1, -(-(sum(part.size for part in batches) // units) // samples))
