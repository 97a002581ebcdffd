"""Fashion-MNIST: the idx files, and the two image formats of the benchmark models."""

import gzip
import math
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

MEAN = 0.286
STD = 0.353
PADDING = 2  # LeNet-5 reads 32x32, the images are 28x28

_PREFIX = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTE = 0x08  # the idx type code


def _read_idx(path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Read a gzipped idx file of unsigned bytes with `ndim` dimensions."""
    data = gzip.decompress(path.read_bytes())
    header_size = 4 + 4 * ndim
    if len(data) < header_size or data[:4] != bytes([0, 0, _UNSIGNED_BYTE, ndim]):
        raise ValueError(f"{path} is not an idx file of unsigned bytes with {ndim} dimension(s)")
    shape = struct.unpack_from(f">{ndim}I", data, 4)
    if len(data) != header_size + math.prod(shape):
        raise ValueError(f"{path} announces shape {shape} but holds {len(data) - header_size} bytes")
    return np.frombuffer(data, dtype=np.uint8, offset=header_size).reshape(shape).copy()


def load_split(
    data_dir: str | Path, split: Literal["train", "test"]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Read one split in its original order.

    Parameters
    ----------
    data_dir : str or Path
        Folder that holds the four ``*-ubyte.gz`` files under their original names.
    split : {'train', 'test'}
        'train' holds 60,000 images, 'test' 10,000.

    Returns
    -------
    images : ndarray of uint8, shape (n, 28, 28)
    labels : ndarray of uint8, shape (n,)
    """
    prefix = _PREFIX[split]
    images = _read_idx(Path(data_dir) / f"{prefix}-images-idx3-ubyte.gz", ndim=3)
    labels = _read_idx(Path(data_dir) / f"{prefix}-labels-idx1-ubyte.gz", ndim=1)
    if len(images) != len(labels):
        raise ValueError(f"{data_dir}: {len(images)} {split} images but {len(labels)} labels")
    return images, labels


def preprocess(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Normalise to ``(x / 255 - 0.286) / 0.353``, the input of the ResNets.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, 28, 28)

    Returns
    -------
    ndarray of float32, shape (n, 1, 28, 28)
    """
    scaled = images[:, np.newaxis].astype(np.float32) / np.float32(255)
    return (scaled - np.float32(MEAN)) / np.float32(STD)


def preprocess_padded(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Pad to 32x32 with black, then normalise, the input of the LeNets.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, 28, 28)

    Returns
    -------
    ndarray of float32, shape (n, 1, 32, 32)
    """
    # Padding comes first: a border of zeros after normalisation would be mid-grey, not background.
    return preprocess(np.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING))))
