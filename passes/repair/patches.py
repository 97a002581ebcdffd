"""Input patches of a convolution, at some of its output positions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfold.channels.operators import Window
from onnxfold.graph.tensors import Array
from onnxfold.statistics.samples import Samples


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
