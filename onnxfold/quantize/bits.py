"""Whole numbers of 2, 4 or 8 bits in blocks along a row, as MatMulNBits holds them.

Row n of a weight of shape (N, K) is cut into blocks. A block has a scale s and a zero point z, and its numbers stand
for (q - z) s. Several numbers lie in a byte, the first one in its lowest bits. The last block of a row is filled up.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Array

Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.float32]
ScaleType = np.dtype[np.generic]


@dataclass(frozen=True)
class BlockFormat:
    """How numbers are stored."""

    bits: int
    block_size: int  # numbers that share a scale
    has_zero_points: bool  # whether blocks have a zero point of their own; else it is the middle of the range

    @property
    def middle(self) -> int:
        """The zero point where none is stored."""
        return 1 << (self.bits - 1)


def unpack_numbers(packed: Bytes, bits: int, count: int) -> Bytes:
    """Return numbers of shape (..., count) from bytes along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)[..., :count].astype(np.uint8)


def pack_numbers(numbers: Bytes, bits: int) -> Bytes:
    """Return bytes that hold numbers along the last axis; the rest of the last byte is zero."""
    per_byte = 8 // bits
    missing = -numbers.shape[-1] % per_byte
    filled = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, missing)])
    apart = filled.reshape(*filled.shape[:-1], -1, per_byte).astype(np.uint16)
    shifts = np.arange(0, 8, bits, dtype=np.uint16)
    content: Bytes = (apart << shifts).sum(axis=-1).astype(np.uint8)
    return content


def dequantized_rows(weight: Bytes, scales: Array, zero_points: Bytes | None, kind: BlockFormat, columns: int) -> Rows:
    """Return the weights that stored numbers stand for, shape (N, K)."""
    rows, blocks = weight.shape[:2]
    numbers = unpack_numbers(weight, kind.bits, kind.block_size).astype(np.float32)
    if zero_points is None:
        numbers -= np.float32(kind.middle)
    else:
        numbers -= unpack_numbers(zero_points.reshape(rows, -1), kind.bits, blocks)[..., None].astype(np.float32)
    numbers *= scales.reshape(rows, blocks, 1).astype(np.float32)
    return np.ascontiguousarray(numbers.reshape(rows, -1)[:, :columns])


def quantized_rows(
    rows: Rows, kind: BlockFormat, scale_type: np.dtype[np.generic]
) -> tuple[Bytes, Array, Bytes | None]:
    """Return numbers, scales and zero points that stand for about some rows, as onnxruntime's quantiser has them.

    Without zero points, the largest number of a block becomes the lowest one of the range, so that what such numbers
    stand for gives the same numbers again. With them, the range is that of the block and zero.
    """
    count, columns = rows.shape
    filled = np.pad(rows.astype(np.float32, copy=False), ((0, 0), (0, -columns % kind.block_size)))
    blocks = filled.reshape(count, -1, kind.block_size)
    most = (1 << kind.bits) - 1
    if kind.has_zero_points:
        low, high = np.minimum(blocks.min(axis=-1), 0.0), np.maximum(blocks.max(axis=-1), 0.0)
        scales = ((high - low) / most).astype(scale_type)
        zeros = np.rint(np.clip(-low * _inverse(scales), 0.0, most))
    else:
        peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)[..., 0]
        scales = (peak / -kind.middle).astype(scale_type)
        zeros = np.full(scales.shape, float(kind.middle))
    numbers = np.rint(blocks * _inverse(scales)[..., None] + zeros[..., None]).clip(0, most).astype(np.uint8)
    stored = pack_numbers(zeros.astype(np.uint8), kind.bits) if kind.has_zero_points else None
    return pack_numbers(numbers, kind.bits), scales, stored


def _inverse(scales: Array) -> Rows:
    wide = scales.astype(np.float32)
    factors: Rows = np.divide(1.0, wide, out=np.zeros_like(wide), where=wide != 0.0)
    return factors
