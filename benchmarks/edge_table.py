"""The published device table beside ours: LeNet5-2x and LeNet5 at several sparsities, and folded until they fit.

Usage: python -m benchmarks.edge_table --data DIR [--quick] [--out benchmarks/edge.md] [--images N]

DIR holds the Fashion-MNIST files. Folds both bundled networks, measures accuracy on all test images, benchmarks every
file on every device, and runs the one that was folded for the Arduino Nano 33 BLE in the emulated Cortex-M4F on the
first N test images. Needs what `onnxfold bench` says is missing; `--quick` is LeNet5 at two sparsities and few images.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import onnxfold
from benchmarks.edge_page import render
from benchmarks.fashion_mnist import load_split, preprocess_padded
from onnxfold.budget.size import measure as model_size
from onnxfold.edge_bench.bench import bench
from onnxfold.edge_bench.dut_job import answers
from onnxfold.edge_bench.emulator import INSTRUCTIONS_PER_TICK, emulated
from onnxfold.edge_bench.job import prepare_job, relative_error
from onnxfold.edge_bench.qemu_build import build
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import NothingToFoldError
from onnxfold.export.firmware.project import write_project
from onnxfold.graph.tensors import Array
from onnxfold.progress import ProgressBar

DEVICE = "arduino-nano-33-ble"
FITTED = "fitted"
NETWORKS = ("lenet5_2x", "lenet5")
SPARSITIES = (0.0, 0.10, 0.25, 0.50, 0.70)
IMAGES = 200
_MODELS = Path(onnxfold.__file__).parent / "data"


@dataclass(frozen=True)
class Variant:
    """A folded network: which one, how far, and what it gets right of all test images."""

    network: str
    label: str
    model: str
    parameters: int
    sparsity: float
    accuracy: float


@dataclass(frozen=True)
class Emulated:
    """A network in the emulated Cortex-M4F: what it gets right there, and how its outputs compare.

    Parameters
    ----------
    model : str
        Name of the file.
    images : int
        First test images that it was run on.
    accuracy, reference_accuracy : float
        In the emulator, and in onnxruntime on the same images.
    max_relative_error : float
        Largest difference over largest reference value.
    instructions : int
        Per inference, median.
    """

    model: str
    images: int
    accuracy: float
    reference_accuracy: float
    max_relative_error: float
    instructions: int


def main() -> None:
    """Fold, measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the Fashion-MNIST *-ubyte.gz files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("edge.md"))
    parser.add_argument("--images", type=int, default=IMAGES, help="test images in the emulator")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--models", type=Path, help="folder to keep folded networks in; what is there is not folded again"
    )
    parser.add_argument("--again", type=Path, metavar="JSON", help="only write the page, from an earlier run's results")
    args = parser.parse_args()
    if args.again is not None:
        args.out.write_text(render(*read_results(args.again)), encoding="utf-8")
        return
    images, labels = load_split(args.data, "test")
    inputs = preprocess_padded(images)
    count = 20 if args.quick else args.images
    networks, sparsities = (("lenet5",), (0.0, 0.5)) if args.quick else (NETWORKS, SPARSITIES)
    with tempfile.TemporaryDirectory() as name, ProgressBar() as tell:
        folder = Path(name)
        models = args.models or folder
        models.mkdir(parents=True, exist_ok=True)
        variants = fold_all(models, networks, sparsities, inputs, labels, fit=not args.quick)
        rows = bench([models / f"{v.model}.onnx" for v in variants], progress=tell)
        shown = next((v for v in variants if v.label == FITTED), variants[-1])
        found = run_emulated(models / f"{shown.model}.onnx", inputs[:count], labels[:count], folder)
    page = render(variants, rows, found)
    args.out.write_text(page, encoding="utf-8")
    results = {
        "variants": [asdict(v) for v in variants], "rows": [r.to_dict() for r in rows], "emulated": asdict(found)
    }  # fmt: skip
    args.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {args.out} and {args.out.with_suffix('.json')}")


def read_results(path: Path) -> tuple[list[Variant], list[BenchResult], Emulated]:
    """Return what an earlier run wrote beside its page."""
    content = json.loads(path.read_text())
    variants = [Variant(**v) for v in content["variants"]]
    return variants, [BenchResult(**r) for r in content["rows"]], Emulated(**content["emulated"])


def fold_all(
    folder: Path, networks: Sequence[str], sparsities: Sequence[float], inputs: Array, labels: Array, *, fit: bool
) -> list[Variant]:
    """Fold every network to every sparsity, and where the whole one does not fit the device, until it does."""
    variants = []
    for network in networks:
        source = _MODELS / f"{network}.onnx"
        requests: list[tuple[str, dict[str, Any] | None]] = [
            (f"{s:.0%}", {"sparsity": s} if s else None) for s in sparsities
        ]
        if fit:
            requests.append((FITTED, {"device": DEVICE}))
        for label, options in requests:
            path = folder / f"{network}_{label.replace('%', '')}.onnx"
            if options is None:
                path.write_bytes(source.read_bytes())
            elif not path.exists():
                try:
                    result = onnxfold.fold(source, **options)
                except NothingToFoldError:  # it fits as it is
                    continue
                result.save(path)
            variants.append(_variant(network, label, source, path, inputs, labels))
            print(variants[-1], flush=True)
    return variants


def run_emulated(path: Path, inputs: Array, labels: Array, folder: Path) -> Emulated:
    """Run a network image by image in the emulated Cortex-M4F, built for 1 MB of flash and 256 KB of RAM."""
    feeds = [{"image": image[None]} for image in inputs]
    job = prepare_job(path, folder, name=path.stem, inputs=feeds)
    firmware = build(Path(write_project(job.onnx, folder / "firmware", "qemu", name=job.name).path))
    with emulated(firmware.elf) as dut:
        found = answers(dut, job, dut.signature(), 300.0, budget_s=float("inf"))
    ticks = [inference.ticks or 0 for inference in found.inferences]
    return Emulated(
        model=job.name,
        images=len(feeds),
        accuracy=_accuracy([outputs[0] for outputs in found.outputs], labels),
        reference_accuracy=_accuracy([outputs[0] for outputs in job.reference], labels),
        max_relative_error=relative_error(job.reference, found.outputs),
        instructions=round(float(np.median(ticks)) * INSTRUCTIONS_PER_TICK),
    )


def _variant(network: str, label: str, source: Path, path: Path, inputs: Array, labels: Array) -> Variant:
    compared = onnxfold.compare(source, path, {"image": inputs}, labels)
    before, after = model_size(source).parameters, model_size(path).parameters
    return Variant(network, label, path.stem, after, 1 - after / before, float(compared.accuracy_b or 0.0))


def _accuracy(outputs: Sequence[Array], labels: Array) -> float:
    return float(np.mean([int(np.argmax(logits)) == int(label) for logits, label in zip(outputs, labels, strict=True)]))


if __name__ == "__main__":
    main()
