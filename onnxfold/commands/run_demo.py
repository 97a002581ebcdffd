"""Run the demo: fold a bundled trained model to several sizes and show the accuracy of each."""

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from onnxfold import api
from onnxfold.files import check_own, made_folder
from onnxfold.graph.files.provenance import is_made_here
from onnxfold.graph.tensors import Array
from onnxfold.progress import Progress, ProgressBar, fold_stages
from onnxfold.report import milliseconds
from onnxfold.terminal import Table, say_table

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
    check_own((_folded_path(out, name, sparsity) for sparsity in SPARSITIES), is_made_here, "the demo")
    with made_folder(out):
        return _run_demo(out, name)


def _folded_path(out: Path, name: str, sparsity: float) -> Path:
    return out / f"{name}_{round(100 * sparsity)}.onnx"


def _run_demo(out: Path, name: str) -> list[tuple[float, float]]:
    images, labels = bundled_test_images()
    rows: list[tuple[str, ...]] = []
    results = []
    with as_file(files("onnxfold.data") / f"{name}.onnx") as model, ProgressBar(fold_stages()) as tell:
        for number, sparsity in enumerate((0.0, *SPARSITIES)):
            if not sparsity:
                report = api.compare(model, model, {"image": images}, labels)
                size = api.measure(model)
                row = (
                    "0.0%",
                    f"{size.parameters:,}",
                    f"{size.macs:,}",
                    _latency(report.latency.before_s if report.latency else None),
                    f"{model.stat().st_size:,}",
                    f"{report.accuracy_a:.2%}",
                    "",
                    name,
                )
                results.append((0.0, float(report.accuracy_a or 0.0)))
            else:
                # The same result whether torch, which inverting images takes, is installed or not.
                progress = _name_progress(tell, f"fold {number} of {len(SPARSITIES)}")
                result = api.fold(model, sparsity, inputs="dead-leaves", progress=progress)
                path = result.save(_folded_path(out, name, sparsity))
                report = api.compare(model, path, {"image": images}, labels)
                fold = result.report
                row = (
                    f"{fold.sparsity:.1%}", f"{fold.after.parameters:,}", f"{fold.after.macs:,}",
                    _latency(fold.latency.after_s if fold.latency else None), f"{path.stat().st_size:,}",
                    f"{report.accuracy_b:.2%}", f"{fold.seconds:.2f} s", str(path),
                )  # fmt: skip
                results.append((fold.sparsity, float(report.accuracy_b or 0.0)))
            rows.append(row)
    title = f"{name}, Fashion-MNIST, 2,000 test images, no data and no training used"
    columns = ("weights removed", "parameters", "MACs", "latency (ms)", "file (bytes)", "accuracy", "fold time", "file")
    say_table(Table(title, columns, rows, left=("file",)))
    return results


def _latency(seconds: float | None) -> str:
    return "" if seconds is None else milliseconds(seconds)


def _name_progress(tell: Progress, fold_name: str) -> Progress:
    """Return a progress that says which of several folds it is about."""
    return lambda text, done, total: tell(f"{fold_name}: {text}", done, total)
