"""The interface of a runner: measure one model on one device by one means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.result import BenchResult
from onnxfold.graph.tensors import Array


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """A model to be measured, and what it should compute."""

    onnx: str  # path of the ONNX model; every input has a fixed shape, with batch 1
    name: str
    inputs: Sequence[Mapping[str, Array]]  # inputs of one inference each, by name
    #: The outputs for each of them, in the order of the model: onnxruntime's, without graph optimisations.
    reference: Sequence[Sequence[Array]]
    work: Path  # scratch folder, removed when the benchmark ends
    warm_up: int = 10  # inferences before, and in, the measurement
    repeats: int = 100
    threads: int = 1  # threads of the runtime, where it has any


class Runner(Protocol):
    """A means to measure."""

    @property
    def name(self) -> str:
        """Short name."""

    def missing(self) -> str:
        """Return the missing programs or packages and how to install them, in one line; '' if none is missing."""

    def run(self, job: BenchJob, device: DeviceProfile | None) -> list[BenchResult]:
        """Measure a job; what goes wrong with a board or a tool is a row, never an exception."""
