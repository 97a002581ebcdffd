"""The trained networks of the accuracy benchmark, found by their names, and the images that each reads."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

import onnxfold
from benchmarks.datasets import cifar10, fashion_mnist

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.uint8]

BUNDLED = Path(onnxfold.__file__).parent / "data"
_NAME = re.compile(
    r"(?P<family>[a-z0-9_]+?)_w(?P<width>[0-9.]+)(?:_(?P<penalty>l[12]-[0-9.e-]+))?_(?P<dataset>cifar10|fashion)"
    r"_(?P<form>bn|fused)"
)
#: The files that ship with the package: name, width.
_LENETS = {"lenet5": 1.0, "lenet5_2x": 2.0}


@dataclass(frozen=True)
class Network:
    """A trained network.

    Parameters
    ----------
    name : str
        The file's name without ``.onnx``.
    path : Path
        The file.
    family, width, penalty, dataset, form : str or float
        What the name says: the architecture, its width, the penalty it was trained with ('' for none), the data set,
        and whether BatchNormalizations are in the file ('bn') or not ('fused').
    """

    name: str
    path: Path
    family: str
    width: float
    penalty: str
    dataset: str
    form: str


def find_networks(folders: Iterable[Path]) -> list[Network]:
    """Return the bundled networks and those of the folders whose names are understood, in order of name."""
    found = [
        Network(name, BUNDLED / f"{name}.onnx", "lenet5", width, "", "fashion", "bn") for name, width in _LENETS.items()
    ]
    for path in sorted(p for folder in folders for p in folder.glob("*.onnx")):
        network = parse_name(path)
        if network is not None and all(n.name != network.name for n in found):
            found.append(network)
    return found


def parse_name(path: Path) -> Network | None:
    """Return the network that ``<family>_w<width>[_<penalty>]_<dataset>_<form>.onnx`` names, None for other names."""
    match = _NAME.fullmatch(path.stem)
    if match is None:
        return None
    said = match.groupdict()
    return Network(
        path.stem, path, said["family"], float(said["width"]), said["penalty"] or "", said["dataset"], said["form"]
    )


def test_images(data: Path, network: Network) -> tuple[Images, Labels]:
    """Return all test images as the network reads them, and their labels."""
    images, labels = _test(data, network.dataset)
    return _as_read(images, network), labels


def train_images(data: Path, network: Network, count: int) -> Images:
    """Return the first training images as the network reads them, for the methods that use data."""
    return labelled_train_images(data, network, count)[0]


def labelled_train_images(data: Path, network: Network, count: int) -> tuple[Images, Labels]:
    """Return the first training images as the network reads them, and their labels."""
    images, labels = _train(data, network.dataset)
    return _as_read(images[:count], network), labels[:count]


def input_of(network: Network) -> tuple[str, tuple[int, ...]]:
    """Return the name of a network's input and the shape of one sample."""
    info = onnx.load(network.path, load_external_data=False).graph.input[0]
    return info.name, tuple(d.dim_value for d in info.type.tensor_type.shape.dim[1:])


@cache
def _test(data: Path, dataset: str) -> tuple[Images, Labels]:
    if dataset == "cifar10":
        return cifar10.load_test(data)
    images, labels = fashion_mnist.load_split(data, "test")
    return fashion_mnist.preprocess(images), labels


@cache
def _train(data: Path, dataset: str) -> tuple[Images, Labels]:
    if dataset == "cifar10":
        return cifar10.load_train_first5k(data)
    images, labels = fashion_mnist.load_split(data, "train")
    return fashion_mnist.preprocess(images[:5000]), labels[:5000]


def _as_read(images: Images, network: Network) -> Images:
    """Pad with black where a network reads larger images than the data set has."""
    _, shape = input_of(network)
    missing = shape[-1] - images.shape[-1]
    if not missing:
        return images
    black = np.float32(-fashion_mnist.MEAN / fashion_mnist.STD)
    before, after = missing // 2, missing - missing // 2
    return np.pad(images, ((0, 0), (0, 0), (before, after), (before, after)), constant_values=black)
