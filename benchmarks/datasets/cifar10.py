"""CIFAR-10: the test split and the first 5,000 training images, normalised for the benchmark models."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


def preprocess(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Scale to [0, 1], normalise each colour channel and move the channels to the front.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, 32, 32, 3)

    Returns
    -------
    ndarray of float32, shape (n, 3, 32, 32)
    """
    scaled = images.astype(np.float32) / np.float32(255)
    normalised = (scaled - np.asarray(MEAN, dtype=np.float32)) / np.asarray(STD, dtype=np.float32)
    return np.ascontiguousarray(normalised.transpose(0, 3, 1, 2))


def _load(path: Path, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    with np.load(path) as archive:
        images, labels = archive["x"], archive["y"]
    if images.shape != (count, 32, 32, 3) or images.dtype != np.uint8:
        raise ValueError(
            f"{path}: x is {images.dtype} of shape {images.shape}, expected uint8 of shape {(count, 32, 32, 3)}"
        )
    if labels.shape != (count,):
        raise ValueError(f"{path}: y has shape {labels.shape}, expected {(count,)}")
    return preprocess(images), labels


def load_test(data_dir: str | Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Read the test split in its original order.

    Parameters
    ----------
    data_dir : str or Path
        Folder that holds ``cifar10_test.npz``.

    Returns
    -------
    images : ndarray of float32, shape (10000, 3, 32, 32)
        Normalised.
    labels : ndarray of uint8, shape (10000,)
    """
    return _load(Path(data_dir) / "cifar10_test.npz", count=10_000)


def load_train_first5k(data_dir: str | Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Read the first 5,000 training images, for the methods that use data.

    Parameters
    ----------
    data_dir : str or Path
        Folder that holds ``cifar10_train_first5k.npz``.

    Returns
    -------
    images : ndarray of float32, shape (5000, 3, 32, 32)
        Normalised.
    labels : ndarray of uint8, shape (5000,)
    """
    return _load(Path(data_dir) / "cifar10_train_first5k.npz", count=5_000)
