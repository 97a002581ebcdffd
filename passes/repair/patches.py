"""Input patches of a convolution, at some of its output positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, attr_ints, attribute
from onnxfold.graph.tensors import Array
from onnxfold.statistics.channel_moments import Samples


@dataclass(frozen=True)
class Window:
    """Geometry of a convolution over d spatial axes: kernel, strides, dilations, padding before each axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, node: NodeProto, weight: Sequence[int]) -> "Window | None":
        """Return the window of a Conv with a weight of this shape; None where padding is chosen at run time."""
        mode = attribute(node, "auto_pad", b"NOTSET")
        if mode not in (b"NOTSET", b"VALID", b""):
            return None
        d = len(weight) - 2
        ones, zeros = [1] * d, [0] * d
        pads = attr_ints(node, "pads", zeros * 2)[:d] if mode != b"VALID" else zeros
        return cls(
            tuple(weight[2:]),
            tuple(attr_ints(node, "strides", ones)),
            tuple(attr_ints(node, "dilations", ones)),
            tuple(pads),
            attr_int(node, "group", 1),
        )

    @property
    def taps(self) -> int:
        """Number of positions that one output reads."""
        return int(np.prod(self.kernel))


def read_patches(x: Array, window: Window, places: Sequence[npt.NDArray[np.int64]], sample: Array) -> Samples:
    """Return what a convolution reads, shape (S, C * taps), channels first as in the rows of its weight.

    Parameters
    ----------
    x : ndarray of shape (N, C, *spatial)
        Input.
    window : Window
        Geometry.
    places : sequence of ndarray of shape (S,)
        Output position along each spatial axis.
    sample : ndarray of shape (S,)
        Index of the sample in the batch.
    """
    offsets = np.indices(window.kernel).reshape(len(window.kernel), -1)
    index: list[Any] = []
    inside = np.ones((len(sample), window.taps), bool)
    for axis, place in enumerate(places):
        at = place[:, None] * window.strides[axis] - window.pads[axis] + offsets[axis] * window.dilations[axis]
        size = x.shape[2 + axis]
        inside &= (at >= 0) & (at < size)
        index.append(np.clip(at, 0, size - 1))
    # Advanced indices are separated by the slice over channels: the result is (S, taps, C).
    found: Array = x[(sample[:, None], slice(None), *index)]
    found = np.where(inside[:, :, None], found, 0).astype(np.float32, copy=False)
    return np.ascontiguousarray(found.transpose(0, 2, 1)).reshape(len(sample), -1)
