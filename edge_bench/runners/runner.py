"""The interface of a runner: measure one model on one device by one means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.result import BenchResult
from onnxfold.graph.tensors import Array


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model to be measured, and what it should compute.

    Parameters
    ----------
    onnx : str
        Path of the ONNX model; every input has a fixed shape, with batch 1.
    name : str
        Name in tables.
    inputs : sequence of mapping of str to ndarray
        Inputs of one inference each, by name.
    reference : sequence of sequence of ndarray
        The outputs for each of them, in the order of the model: onnxruntime's, without graph optimisations.
    warm_up, repeats : int
        Inferences before, and in, the measurement.
    threads : int
        Threads of the runtime, where it has any.
    seed : int
        Seed of the inputs.
    work : Path
        Scratch folder, removed when the benchmark ends.
    """

    onnx: str
    name: str
    inputs: Sequence[Mapping[str, Array]]
    reference: Sequence[Sequence[Array]]
    warm_up: int
    repeats: int
    threads: int
    seed: int
    work: Path


class Runner(Protocol):
    """A means to measure."""

    @property
    def name(self) -> str:
        """Short name."""

    def missing(self) -> str:
        """Return what is missing and what to install, in one line; '' if nothing is."""

    def run(self, job: Job, device: DeviceProfile | None) -> list[BenchResult]:
        """Measure a job; what goes wrong with a board or a tool is a row, never an exception."""
