"""A benchmark job: a model with fixed shapes, its inputs, the expected outputs, and its file for TFLite."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.result import BenchResult
from onnxfold.export.api import open_model
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import from_layout, reference_inputs, run_reference, to_layout
from onnxfold.export.tflite.convert import Port, convert, fix_to_one_sample
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import save
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


#: Inputs that outputs are compared on.
SAMPLES = 20


def prepare_job(
    model: str | Path,
    work: Path,
    inputs: Sequence[Mapping[str, Array]] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    **fields: Any,
) -> BenchJob:
    """Write a model for inferences of one sample, and compute what it should give.

    Parameters
    ----------
    model, work : path
        The model, and a folder for the files of the job.
    inputs : sequence of mapping, optional
        Inputs of one inference each.
    input_shapes : mapping, optional
        Sizes of free dimensions of inputs.
    samples, seed : int
        Number and seed of the inputs that are generated where none are passed.
    **fields
        Further fields of the job.
    """
    view = open_model(model, input_shapes)
    fix_to_one_sample(view)
    path = work / "model.onnx"
    save(view, path)
    batches = reference_inputs(view, samples=samples, seed=seed) if inputs is None else inputs
    job_inputs = [dict(feeds) for feeds in batches]
    reference = [list(outputs.values()) for outputs in run_reference(path, job_inputs)]
    fields = {"name": Path(model).stem, **fields}
    return BenchJob(onnx=str(path), inputs=job_inputs, reference=reference, work=work, **fields)


def relative_error(reference: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]) -> float:
    """Return the largest difference over the largest reference value, of all inferences and outputs.

    Outputs may have any shape of the same size; what is not finite on one side only differs infinitely.
    """
    worst = 0.0
    for place in range(len(reference[0]) if reference else 0):
        a = np.concatenate([np.asarray(r[place], np.float64).reshape(-1) for r in reference])
        b = np.concatenate([np.asarray(o[place], np.float64).reshape(-1) for o in outputs])
        finite = np.isfinite(a)
        if a.shape != b.shape or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if not np.isfinite(b[finite]).all():
            return float("inf")
        largest = float(np.abs(a[finite]).max(initial=0.0))
        error = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
        worst = max(worst, error / largest if largest else error)
    return worst


@dataclass(frozen=True)
class TFLiteFile:
    """A written file."""

    path: Path
    inputs: tuple[Port, ...]  # what it reads and gives, in its order
    outputs: tuple[Port, ...]
    operators: tuple[str, ...]  # TFLite's names of the kinds of operators in it

    def feeds(self, job: BenchJob) -> list[list[Array]]:
        """Return the job's inputs in the order and layout of the file."""
        return [[to_layout(feeds[p.name], p.layout) for p in self.inputs] for feeds in job.inputs]

    def to_onnx(self, outputs: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Bring outputs into the layout of ONNX."""
        return [[from_layout(a, p.layout) for a, p in zip(arrays, self.outputs, strict=True)] for arrays in outputs]


def write_tflite(job: BenchJob) -> TFLiteFile:
    """Write a job's model as float32 TFLite into its scratch folder; the runners of a job share the file."""
    view = load(job.onnx)
    PREPARE(view)
    converted = convert(view)
    path = job.work / "model.tflite"
    path.write_bytes(converted.to_bytes(view.graph.name))
    return TFLiteFile(path, converted.inputs, converted.outputs, tuple(converted.operators))
