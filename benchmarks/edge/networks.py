"""Networks of the device benchmark: folded, measured on test images, run in the emulator."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import onnxfold
from benchmarks.edge.results import Emulated, Variant
from onnxfold.edge_bench.boards.dut import answers
from onnxfold.edge_bench.boards.qemu import INSTRUCTIONS_PER_TICK, build, emulate_firmware
from onnxfold.edge_bench.job import prepare_job, relative_error
from onnxfold.errors import NothingToFoldError
from onnxfold.export.firmware.project import write_project
from onnxfold.graph.tensors import Array
from onnxfold.inspection import measure as model_size

DEVICE = "arduino-nano-33-ble"
FITTED = "fitted"
NETWORKS = ("lenet5_2x", "lenet5")
SPARSITIES = (0.0, 0.10, 0.25, 0.50, 0.70)
IMAGES = 200
_MODELS = Path(onnxfold.__file__).parent / "data"


def fold_all(
    folder: Path, networks: Sequence[str], sparsities: Sequence[float], inputs: Array, labels: Array, *, fit: bool
) -> list[Variant]:
    """Fold every network to every sparsity, and where the whole one does not fit the device, until it does."""
    variants = []
    for network in networks:
        source = _MODELS / f"{network}.onnx"
        requests: list[tuple[str, dict[str, Any] | None]] = [
            # Microcontrollers prefer no widths.
            (f"{s:.0%}", {"sparsity": s, "objective": "weights", "round_to": 1} if s else None)
            for s in sparsities
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
    with emulate_firmware(firmware.elf) as dut:
        found, inferences = answers(dut, job, dut.signature(), 300.0, budget_s=float("inf"))
    ticks = [inference.ticks or 0 for inference in inferences]
    return Emulated(
        model=job.name,
        images=len(feeds),
        accuracy=_accuracy([outputs[0] for outputs in found], labels),
        reference_accuracy=_accuracy([outputs[0] for outputs in job.reference], labels),
        max_relative_error=relative_error(job.reference, found),
        instructions=round(float(np.median(ticks)) * INSTRUCTIONS_PER_TICK),
    )


def _variant(network: str, label: str, source: Path, path: Path, inputs: Array, labels: Array) -> Variant:
    compared = onnxfold.compare(source, path, {"image": inputs}, labels)
    before, after = model_size(source).parameters, model_size(path).parameters
    return Variant(network, label, path.stem, after, 1 - after / before, float(compared.accuracy_b or 0.0))


def _accuracy(outputs: Sequence[Array], labels: Array) -> float:
    return float(np.mean([int(np.argmax(logits)) == int(label) for logits, label in zip(outputs, labels, strict=True)]))
