"""The cells: folds of trained networks, their signs, and the agreement on real images that is to be predicted."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import onnxfold
from benchmarks.accuracy import networks as trained
from benchmarks.accuracy.store import fingerprint
from benchmarks.datasets import imagenet_even
from benchmarks.imagenet import PIXELS, answers

#: Test images of small networks: an agreement of 90 % is then known to within 2 points.
IMAGES = 1000
#: Unlabeled training images of cells that are folded on data.
CALIBRATION = 128
#: Sparsities of networks for small images: on default inputs, on dead leaves, on unlabeled images.
SPARSITIES = {"auto": (0.3, 0.5, 0.7, 0.85, 0.95), "dead-leaves": (0.6,), "data": (0.5, 0.8)}
#: Those of ImageNet networks, which are folded on 32 dead leaves.
IMAGENET_SPARSITIES = (0.2, 0.3, 0.4)
IMAGENET_SAMPLES = 32

Images = npt.NDArray[np.float32]
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A trained network.

    Parameters
    ----------
    name : str
        The file's name without ``.onnx``.
    path : Path
        The file.
    data : Path
        Folder of the data sets.
    small : Network, optional
        What its name says; None for an ImageNet network.
    """

    name: str
    path: Path
    data: Path
    small: trained.Network | None = None

    @property
    def training(self) -> str:
        """The name without the form of the export: files of one training are left out together."""
        return self.name.removesuffix("_bn").removesuffix("_fused")

    @cached_property
    def images(self) -> tuple[Images, npt.NDArray[np.int64]]:
        """Test images and labels; of ImageNet those of classes that are multiples of 4, which judge nothing else."""
        if self.small is None:
            images, labels = _imagenet(self.data)
            tuning = imagenet_even.is_tuning(labels)
            return images[tuning], labels[tuning]
        images, known = trained.test_images(self.data, self.small)
        return images[:IMAGES], known[:IMAGES].astype(np.int64)

    @cached_property
    def answers(self) -> npt.NDArray[np.int64]:
        """The original's classes."""
        return answers(onnx.load(self.path), self.images[0])

    def cells(self) -> Iterator[tuple[str, float]]:
        """Return inputs and sparsity of every cell."""
        if self.small is None:
            return (("dead-leaves", sparsity) for sparsity in IMAGENET_SPARSITIES)
        return ((inputs, sparsity) for inputs, all_of in SPARSITIES.items() for sparsity in all_of)

    def options(self, inputs: str) -> dict[str, Any]:
        """Return the options of a fold."""
        if self.small is None:
            return {"inputs": inputs, "samples": IMAGENET_SAMPLES}
        if inputs != "data":
            return {"inputs": inputs}
        name, _ = trained.input_of(self.small)
        return {"calibration": {name: trained.train_images(self.data, self.small, CALIBRATION)}}


def subjects(data: Path, folders: list[Path]) -> list[Subject]:
    """Return the bundled networks, and those of the folders whose names are understood."""
    small = [Subject(n.name, n.path, data, n) for n in trained.find_networks(folders)]
    large = sorted(path for folder in folders for path in folder.glob("*_imagenet_*.onnx"))
    return small + [Subject(path.stem, path, data) for path in large]


def measure(subject: Subject, inputs: str, sparsity: float, cache: str | None) -> Row:
    """Fold once; return the signs of the fold, and its agreement on real images."""
    result = onnxfold.fold(subject.path, sparsity, cache=cache, **subject.options(inputs))
    report, (images, labels) = result.report, subject.images
    folded, original = answers(result.model, images), subject.answers
    if report.estimate is None:
        raise ValueError(f"{subject.name}: the fold makes no estimate")
    return {
        "network": subject.name,
        "training": subject.training,
        "asked": inputs,
        "sparsity": sparsity,
        "removed": round(report.sparsity, 4),
        "agreement": float((folded == original).mean()),
        "images": len(images),
        "dense": float((original == labels).mean()),
        "accuracy": float((folded == labels).mean()),
        "signs": {name: _short(value) for name, value in asdict(report.estimate.signs).items()},
        "code": fingerprint(),
    }


class Rows:
    """Rows in a file, one a line; what is there is not measured again.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        if path.is_file():
            self.rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]

    def has(self, network: str, inputs: str, sparsity: float) -> bool:
        """Return whether a cell was measured."""
        return any((r["network"], r["asked"], r["sparsity"]) == (network, inputs, sparsity) for r in self.rows)

    def add(self, row: Row) -> None:
        """Append a row."""
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@cache
def _imagenet(data: Path) -> tuple[Images, npt.NDArray[np.int64]]:
    return imagenet_even.load(data, PIXELS)


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
