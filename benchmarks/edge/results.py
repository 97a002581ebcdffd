"""Results of the device benchmark: folded networks, and one of them in the emulator."""

import json
from dataclasses import dataclass
from pathlib import Path

from onnxfold.edge_bench.result import BenchResult


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


def read_results(path: Path) -> tuple[list[Variant], list[BenchResult], Emulated]:
    """Return what an earlier run wrote beside its page."""
    content = json.loads(path.read_text())
    variants = [Variant(**v) for v in content["variants"]]
    return variants, [BenchResult(**r) for r in content["rows"]], Emulated(**content["emulated"])
