"""The order of an ONNX tensor's axes in its TFLite tensor.

TFLite's image operators want channels last (N, H, W, C), ONNX has them behind the batch (N, C, H, W). A
:class:`Layout` says which ONNX axis each TFLite axis holds. A flattened feature map, whose elements TFLite has in
another order than ONNX, is a layout too: then a layer that reads it permutes its weights once, instead of the
activations at every run.
"""

import math
from dataclasses import dataclass

import numpy as np

from onnxfold.graph.tensors import Array

Shape = tuple[int, ...]

#: Multiplies dynamic dimensions when sizes are compared, so that they only ever match each other.
_DYNAMIC = 1_000_003


class Dynamic(int):
    """A dimension that is only known at run time; its value is its size for a batch of one."""

    __slots__ = ()


@dataclass(frozen=True)
class Layout:
    """An order of axes, and of what the last axis enumerates."""

    perm: tuple[int, ...]  # TFLite axis i holds ONNX axis ``perm[i]``
    block: tuple[int, ...] = ()  # (C, H, W) if the last axis is a flattened feature map with channels last, else empty

    @property
    def is_plain(self) -> bool:
        """Whether this is ONNX's own order."""
        return not self.block and self.perm == tuple(range(len(self.perm)))

    def shape(self, shape: Shape) -> Shape:
        """Return the TFLite shape of a tensor of an ONNX shape."""
        return tuple(shape[p] for p in self.perm)

    def axis(self, axis: int) -> int:
        """Return the TFLite position of an ONNX axis, which may be negative."""
        return self.perm.index(axis % len(self.perm))

    def order(self) -> Array:
        """Return, for each position of the flattened last axis, the ONNX position that it holds."""
        return np.arange(math.prod(self.block)).reshape(self.block).transpose(*range(1, len(self.block)), 0).reshape(-1)

    def values(self, values: Array) -> Array:
        """Bring a constant of full rank from ONNX's order into this one; broadcast axes have size 1."""
        if self.block and values.shape[-1] > 1:
            values = values[..., self.order()]
        return values.transpose(self.perm)

    def name(self) -> str:
        """Return the usual letters, e.g. ``NHWC``."""
        rank = len(self.perm)
        letters = {3: "NCW", 4: "NCHW", 5: "NCDHW"}.get(rank, "")
        if self.is_plain:
            return letters or "ONNX's order"
        return "".join(letters[p] for p in self.perm) if letters and not self.block else f"axes {list(self.perm)}"


def plain(rank: int) -> Layout:
    """Return ONNX's own order."""
    return Layout(tuple(range(rank)))


def channels_last(rank: int) -> Layout:
    """Return (N, spatial..., C); ONNX's own order below rank 3."""
    return Layout((0, *range(2, rank), 1)) if rank > 2 else plain(rank)


def flattened(block: tuple[int, ...]) -> Layout:
    """Return the layout of (N, C*H*W) flattened from a channels-last map."""
    return Layout((0, 1), block)


def keeps_order(before: Shape, from_layout: Layout, after: Shape, to_layout: Layout) -> bool:
    """Whether a reshape between two ONNX shapes is one between the TFLite tensors: elements keep their order.

    Dimensions are matched in blocks of equal size, (C) with (g, C/g) or (H, W) with (H*W). The order is kept if both
    layouts have the blocks in the same sequence, and the axes of each block side by side and ascending.
    """
    sizes, from_axes = _unfold(before, from_layout)
    new_sizes, to_axes = _unfold(after, to_layout)
    blocks = _blocks(sizes, new_sizes)
    if blocks is None:
        return False
    sequences = (_sequence(from_axes, blocks[0]), _sequence(to_axes, blocks[1]))
    return sequences[0] is not None and sequences[0] == sequences[1]


def _unfold(shape: Shape, layout: Layout) -> tuple[list[int], list[int]]:
    """Return sizes (dynamic ones marked) and axes in TFLite's order, a flattened block as the axes it came from."""
    sizes = [int(d) * _DYNAMIC if isinstance(d, Dynamic) else int(d) for d in shape]
    if not layout.block:
        return sizes, list(layout.perm)
    last = len(shape) - 1
    return [*sizes[:-1], *layout.block], [*range(last), *range(last + 1, last + len(layout.block)), last]


def _blocks(before: list[int], after: list[int]) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return the block of every axis that is longer than 1, on both sides, None if the shapes do not match up."""
    left = [i for i, d in enumerate(before) if d != 1]
    right = [i for i, d in enumerate(after) if d != 1]
    block_of: tuple[dict[int, int], dict[int, int]] = ({}, {})
    i = j = block = 0
    while i < len(left) and j < len(right):
        block_of[0][left[i]] = block_of[1][right[j]] = block
        a, b = before[left[i]], after[right[j]]
        while a != b:
            if a < b and i + 1 < len(left):
                i += 1
                a *= before[left[i]]
                block_of[0][left[i]] = block
            elif b < a and j + 1 < len(right):
                j += 1
                b *= after[right[j]]
                block_of[1][right[j]] = block
            else:
                return None
        i, j, block = i + 1, j + 1, block + 1
    return block_of if i == len(left) and j == len(right) else None


def _sequence(axes: list[int], block_of: dict[int, int]) -> list[int] | None:
    """Return the blocks in the order of the axes, None if one is torn or turned."""
    order: list[int] = []
    previous = -1
    for axis in (a for a in axes if a in block_of):
        block = block_of[axis]
        if order and order[-1] == block:
            if axis < previous:
                return None
        elif block in order:
            return None
        else:
            order.append(block)
        previous = axis
    return order
