"""A grid of images in one PNG file.

Reference: Portable Network Graphics (PNG) Specification, third edition, W3C: signature, then the chunks IHDR, IDAT
(rows, each after a filter byte of 0, deflated) and IEND, each with its length in front and its checksum behind.
"""

import math
import struct
import zlib

import numpy as np
import numpy.typing as npt

from onnxfold.errors import ConfigError
from onnxfold.graph.tensors import Array
from onnxfold.inputs.images.input_scale import IMAGE_CHANNELS, has_channels_last

#: Ending of the name of such a file.
PNG = (".png",)

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOUR = 0, 2
#: Values outside of these percentiles are cut off: a few bright pixels would leave everything else dark.
_PERCENTILES = (0.5, 99.5)


def png_grid(images: Array, *, columns: int | None = None) -> bytes:
    """Return a file of images side by side, with one scale for all of them."""
    pixels = _pixels(images)
    samples, height, width, channels = pixels.shape
    columns = columns or math.ceil(math.sqrt(samples))
    rows = -(-samples // columns)
    # A dark line behind every row and column, but the last ones.
    tiles = np.pad(pixels, ((0, rows * columns - samples), (0, 1), (0, 1), (0, 0)))
    tiles = tiles.reshape(rows, columns, height + 1, width + 1, channels).swapaxes(1, 2)
    return _png(tiles.reshape(rows * (height + 1), columns * (width + 1), channels)[:-1, :-1])


def _pixels(images: Array) -> npt.NDArray[np.uint8]:
    """Return images with channels last (1 or 3) as bytes."""
    if images.ndim != 4 or not images.size:
        shape = list(images.shape)
        raise ConfigError(f"an array of the shape {shape} holds no images: give samples, channels and sizes")
    values = images.astype(np.float64)
    if not has_channels_last(values.shape):
        values = values.transpose(0, 2, 3, 1)
    values = values[..., :3] if values.shape[3] in IMAGE_CHANNELS else values.mean(axis=3, keepdims=True)
    low, high = np.percentile(values, _PERCENTILES)
    scaled = (values - low) / max(high - low, 1e-12)
    pixels: npt.NDArray[np.uint8] = (scaled.clip(0.0, 1.0) * 255).round().astype(np.uint8)
    return pixels


def _png(grid: npt.NDArray[np.uint8]) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width, channels = grid.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR if channels == 3 else _GREY, 0, 0, 0)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), grid.reshape(height, -1)], axis=1)
    pixels = zlib.compress(rows.tobytes(), 9)
    return _SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
