"""The cells: folds of trained networks, their signs, and the agreement on real images that is to be predicted."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy import networks as trained
from benchmarks.accuracy.store import fingerprint
from benchmarks.datasets import cifar10, fashion_mnist, imagenet_even
from onnxfold.config import FoldConfig
from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.fidelity.estimate import doubt_of, signs_of
from onnxfold.fidelity.measures import correct_answers
from onnxfold.fidelity.verify import Verification
from onnxfold.folding.fold_model import fold_model
from onnxfold.folding.fold_task import open_task
from onnxfold.folding.inputs.choose_inputs import choose_inputs
from onnxfold.graph.files.save import to_model
from onnxfold.graph.run.session import Session
from onnxfold.progress import silent
from onnxfold.report.records import join_diagnostics

#: Test images of small networks: an agreement of 90 % is then known to within 2 points.
IMAGES = 1000
#: Unlabeled images of cells that are folded on data, as many of cells that are folded on images of another kind.
CALIBRATION = 250
KINDS = ("auto", "dead-leaves", "data", "crops")
#: Sparsities of networks for small images, and of those for ImageNet.
SPARSITIES, IMAGENET_SPARSITIES = (0.2, 0.4, 0.6, 0.8, 0.9), (0.1, 0.2, 0.3, 0.4, 0.5)
#: Of networks for ImageNet: pixels, mean, standard deviation, number of the first class; by the beginning of the name.
_IMAGENET = {"mobilenet_v1_075_192": (192, 128.0, 128.0, 1), "efficientnet_lite1": (240, 127.0, 128.0, 0)}

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
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
    dataset : {'fashion', 'cifar10', 'imagenet'}
        The kind of images that it reads.
    """

    name: str
    path: Path
    data: Path
    dataset: str

    @property
    def training(self) -> str:
        """The name without the form of the export: files of one training are left out together."""
        return self.name.removesuffix("_bn").removesuffix("_fused")

    @cached_property
    def images(self) -> tuple[Images, Labels]:
        """Test images and labels; of ImageNet those of odd halves of the classes."""
        if self.dataset == "imagenet":
            images, labels = _imagenet(self.data, self.name)
            return images[1::2], labels[1::2]
        images, known = _small(self.data, self.dataset)[0]
        return self._as_read(images[:IMAGES]), known[:IMAGES].astype(np.int64)

    @cached_property
    def session(self) -> Session:
        """The original in onnxruntime."""
        return Session(self.path)

    @cached_property
    def scores(self) -> Images:
        """The original's answers to the test images."""
        return _scores(self.session, self.images[0])

    @property
    def sparsities(self) -> tuple[float, ...]:
        """Sparsities of its cells."""
        return IMAGENET_SPARSITIES if self.dataset == "imagenet" else SPARSITIES

    def options(self, kind: str) -> dict[str, Any]:
        """Return the options of a fold on inputs of a kind."""
        if kind not in ("data", "crops"):
            return {"inputs": kind}
        if kind == "crops":
            images = self._crops()
        elif self.dataset == "imagenet":
            images = _imagenet(self.data, self.name)[0][::2][:CALIBRATION]
        else:
            images = self._as_read(_small(self.data, self.dataset)[1][0][:CALIBRATION])
        return {"calibration": {self.session.inputs[0].name: images}}

    def _crops(self) -> Images:
        """Crops of the two photographs that scikit-learn ships: images of another kind than the network's."""
        if self.dataset == "imagenet":
            pixels, mean, std, _ = _imagenet_form(self.name)
            return ((_photo_crops(pixels).astype(np.float32) - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
        if self.dataset == "cifar10":
            return cifar10.preprocess(_photo_crops(32))
        return self._as_read(fashion_mnist.preprocess(_photo_crops(28).mean(axis=3).astype(np.uint8)))

    def _as_read(self, images: Images) -> Images:
        """Pad with black where a network reads larger images than the data set has."""
        size = self.session.inputs[0].shape[-1]
        missing = (size if isinstance(size, int) else images.shape[-1]) - images.shape[-1]
        before, black = missing // 2, np.float32(-fashion_mnist.MEAN / fashion_mnist.STD)
        sides = (before, missing - before)
        return np.pad(images, ((0, 0), (0, 0), sides, sides), constant_values=black) if missing else images


def subjects(data: Path, folders: list[Path]) -> list[Subject]:
    """Return the bundled networks, and those of the folders whose names say what they read."""
    paths = [trained.BUNDLED / "lenet5.onnx", trained.BUNDLED / "lenet5_2x.onnx"]
    paths += sorted(path for folder in folders for path in folder.glob("*.onnx"))
    kinds: dict[str, Callable[[str], bool]] = {
        "fashion": lambda name: name.startswith("lenet5") or "fashion" in name,
        "cifar10": lambda name: "cifar10_" in name or name in _REAL,
        "imagenet": lambda name: name.startswith(tuple(_IMAGENET)),
    }
    return [Subject(p.stem, p, data, kind) for p in paths for kind, fits in kinds.items() if fits(p.stem)]


#: Networks of others for CIFAR-10 images, with the normalisation of the benchmark's own.
_REAL = ("tinycnn_esp", "winml_classifier")


def measure(subject: Subject, kind: str, cache: str | None) -> Iterator[Row]:
    """Fold to all sparsities; return the signs of every fold, and its agreement on real images.

    What groups could become is computed once, as by ``--min-fidelity``; every fold is that of its own request.
    """
    images, labels = subject.images
    config = FoldConfig(sparsity=subject.sparsities[0], cache=cache, **subject.options(kind))
    task = open_task(subject.path, config, silent)
    data = choose_inputs(task.opened, config, task.method, silent)
    if data.inputs is None:
        raise ValueError(f"{subject.name}: {data.notes[0]}")
    prepared = task.prepared(data.inputs, chooses=True)
    for sparsity in subject.sparsities:
        wanted = replace(task, config=replace(config, sparsity=sparsity))
        try:
            folded = fold_model(prepared.trial(), wanted.request(may_keep_all=True), wanted.config, silent)
        except (BudgetError, NothingToFoldError):
            continue
        checked = Verification(subject.path, folded.view, threads=None, fitted_on=data.inputs).run()
        curves = join_diagnostics([graph.diagnostics for graph in folded.graphs])
        known = signs_of(checked.fidelity, checked.samples, data.inputs.kind, curves)
        if known is None:
            raise ValueError(f"{subject.name}: no output names classes")
        signs = known[1]
        after = _scores(Session(to_model(folded.view)), images)
        yield {
            "network": subject.name,
            "training": subject.training,
            "asked": kind,
            "sparsity": sparsity,
            "agreement": float((after.argmax(axis=1) == subject.scores.argmax(axis=1)).mean()),
            "images": len(images),
            "dense": float(correct_answers([subject.scores], labels).mean()),
            "accuracy": float(correct_answers([after], labels).mean()),
            "signs": {name: _short(value) for name, value in asdict(signs).items()},
            "doubt": doubt_of(signs),
            "code": fingerprint(),
        }


def _scores(session: Session, images: Images) -> Images:
    scores = session.run_in_batches({session.inputs[0].name: images}, 50)[0]
    return scores.reshape(len(images), -1)


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

    def has(self, network: str, kind: str) -> bool:
        """Return whether the folds of a network on inputs of a kind were measured."""
        return any((r["network"], r["asked"]) == (network, kind) for r in self.rows)

    def add(self, rows: list[Row]) -> None:
        """Append all rows of a network on inputs of a kind: an interrupted measurement leaves none of them."""
        self.rows += rows
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))


def _imagenet_form(name: str) -> tuple[int, float, float, int]:
    return next(form for start, form in _IMAGENET.items() if name.startswith(start))


@cache
def _imagenet(data: Path, name: str) -> tuple[Images, Labels]:
    pixels, mean, std, first = _imagenet_form(name)
    images, labels = imagenet_even.load(data, pixels, mean, std)
    return images, labels + first


@cache
def _small(data: Path, dataset: str) -> tuple[tuple[Images, Any], tuple[Images, Any]]:
    """Return test and training images, each with labels."""
    if dataset == "cifar10":
        return cifar10.load_test(data), cifar10.load_train_first5k(data)
    splits = [fashion_mnist.load_split(data, split) for split in ("test", "train")]
    test, train = ((fashion_mnist.preprocess(images[:5000]), labels[:5000]) for images, labels in splits)
    return test, train


@cache
def _photo_crops(size: int) -> npt.NDArray[np.uint8]:
    from PIL import Image  # in the extra `bench`
    from sklearn.datasets import load_sample_images

    photos, random = [Image.fromarray(i) for i in load_sample_images().images], np.random.default_rng(0)
    crops = []
    for i in range(CALIBRATION):
        photo = photos[i % len(photos)]
        side = min(int(np.sqrt(random.uniform(0.08, 1.0) * photo.width * photo.height)), *photo.size)
        left, top = (int(random.integers(0, length - side + 1)) for length in photo.size)
        crop = photo.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BICUBIC)
        crops.append(np.asarray(crop))
    return np.stack(crops)


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value
