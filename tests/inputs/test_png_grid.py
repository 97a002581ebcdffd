"""PNG files, read back chunk by chunk."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from onnxfold.errors import ConfigError
from onnxfold.inputs.images.png_grid import png_grid


def _read(data: bytes) -> np.ndarray:
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, {0: 1, 2: 3}[colour])


def test_images_stand_side_by_side() -> None:
    images = np.random.default_rng(0).uniform(-2, 2, (5, 3, 4, 6)).astype(np.float32)
    grid = _read(png_grid(images, columns=3))
    assert grid.shape == (2 * 4 + 1, 3 * 6 + 2, 3)
    low, high = np.percentile(images, (0.5, 99.5))
    for i, image in enumerate(images):
        top, left = i // 3 * 5, i % 3 * 7
        expected = (image.transpose(1, 2, 0) - low) / (high - low) * 255
        np.testing.assert_allclose(grid[top : top + 4, left : left + 6], expected.clip(0, 255), atol=0.51)
    assert not grid[4].any()
    assert not grid[5:, 14:].any()


@pytest.mark.parametrize(
    ("shape", "channels"),
    [((4, 1, 5, 5), 1), ((4, 7, 5, 6), 1), ((4, 4, 5, 5), 3), ((4, 5, 6, 3), 3), ((4, 5, 6, 1), 1)],
)
def test_channels(shape: tuple[int, ...], channels: int) -> None:
    images = np.random.default_rng(0).standard_normal(shape)
    grid = _read(png_grid(images))
    height, width = (5, 6) if 6 in shape else (5, 5)
    assert grid.shape == (2 * height + 1, 2 * width + 1, channels)


def test_equal_values_are_black() -> None:
    assert not _read(png_grid(np.full((1, 3, 2, 2), 0.7))).any()


def test_refusals() -> None:
    for shape in ((3, 4, 5), (0, 3, 4, 4)):
        with pytest.raises(ConfigError, match="holds no images"):
            png_grid(np.zeros(shape))
