"""The demo: a bundled model folded to several sizes with the accuracy of each, or copied to a folder."""

import io
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from onnxfold import api
from onnxfold.files import check_own, made_folder, write
from onnxfold.graph.files.provenance import is_made_here
from onnxfold.graph.tensors import Array
from onnxfold.progress import ProgressBar, fold_stages, under
from onnxfold.report import ModelSize, milliseconds
from onnxfold.terminal import Table, say_table

#: The test set, in the form that ``--data`` takes: an array named after the model's input, and labels.
TEST_SET = "fashion_mnist_test.npz"
SPARSITIES = (0.10, 0.25, 0.50, 0.70)

#: Normalisation and padding the bundled models were trained with, see onnxfold/data/README.md.
_MEAN, _STD, _PAD = 0.286, 0.353, 2


def bundled_test_images() -> tuple[Array, Array]:
    """Return the 2,000 bundled Fashion-MNIST test images as model inputs (2000, 1, 32, 32), and their labels."""
    with as_file(files("onnxfold.data") / "fashion_mnist_test_2000.npz") as path, np.load(path) as data:
        images, labels = data["image"], data["y"]
    padded = np.pad(images, ((0, 0), (_PAD, _PAD), (_PAD, _PAD)))
    x = (padded.astype(np.float32) / 255.0 - _MEAN) / _STD
    return x[:, None].astype(np.float32), labels


def run_demo(out: Path, name: str = "lenet5_2x") -> list[tuple[float, float]]:
    """Fold a bundled model to 10, 25, 50 and 70 % and print what each version costs and gets right."""
    paths = [out / f"{name}_{round(100 * sparsity)}.onnx" for sparsity in SPARSITIES]
    check_own(paths, is_made_here, "the demo")
    images, labels = bundled_test_images()
    rows: list[tuple[str, ...]] = []
    results = []
    bundled = files("onnxfold.data") / f"{name}.onnx"
    with made_folder(out), as_file(bundled) as model, ProgressBar(fold_stages()) as tell:
        dense = api.compare(model, model, {"image": images}, labels)
        size, seconds = api.measure(model), dense.latency.before_s if dense.latency else None
        results.append((0.0, float(dense.accuracy_a or 0.0)))
        rows.append((*_costs(*results[0], size, seconds, model), "", name))
        for number, (sparsity, target) in enumerate(zip(SPARSITIES, paths, strict=True), 1):
            # The same result whether torch, which inverting images takes, is installed or not.
            progress = under(f"fold {number} of {len(SPARSITIES)}: ", tell)
            result = api.fold(model, sparsity, inputs="dead-leaves", progress=progress)
            path, fold = result.save(target), result.report
            accuracy = api.compare(model, path, {"image": images}, labels).accuracy_b
            results.append((fold.sparsity, float(accuracy or 0.0)))
            seconds = fold.latency.after_s if fold.latency else None
            rows.append((*_costs(*results[-1], fold.after, seconds, path), f"{fold.seconds:.2f} s", str(path)))
    title = f"{name}, Fashion-MNIST, 2,000 test images, no data and no training used"
    columns = ("weights removed", "parameters", "MACs", "latency (ms)", "file (bytes)", "accuracy", "fold time", "file")
    say_table(Table(title, columns, rows, left=("file",)))
    return results


def _costs(sparsity: float, accuracy: float, size: ModelSize, seconds: float | None, file: Path) -> tuple[str, ...]:
    latency = "" if seconds is None else milliseconds(seconds)
    counts = f"{sparsity:.1%}", f"{size.parameters:,}", f"{size.macs:,}"
    return *counts, latency, f"{file.stat().st_size:,}", f"{accuracy:.2%}"


def copy_demo(folder: Path, name: str = "lenet5_2x") -> list[Path]:
    """Copy a bundled model, the bundled test images as its inputs with their labels, and what is said about both."""
    images, labels = bundled_test_images()
    bundled = files("onnxfold.data")
    samples = io.BytesIO()
    np.savez_compressed(samples, image=images, y=labels.astype(np.int64))
    contents = {
        folder / f"{name}.onnx": (bundled / f"{name}.onnx").read_bytes(),
        folder / TEST_SET: samples.getvalue(),
        folder / "README.md": (bundled / "README.md").read_bytes(),
    }
    check_own(contents, lambda path: path.read_bytes() == contents[path], "the demo")
    with made_folder(folder):
        write(contents)
    return list(contents)
