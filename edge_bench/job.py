"""A benchmark job: a model with fixed shapes, its inputs, the expected outputs, its file for TFLite, and its memory.

The arena in TensorFlow Lite Micro is also allocated on this machine. Pointers here have 64 bits, on the boards 32: the
tables of the interpreter (the arena's tail) are larger than on a board, the activations (its head) the same. So the
total is an upper bound for the same kernels; kernels that a vendor optimised (CMSIS-NN, ESP-NN) may take scratch memory
that the reference kernels do not.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onnxfold.budget.devices import DeviceProfile, MemoryNeed
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import ExportError
from onnxfold.export.api import open_model
from onnxfold.export.firmware.need import counted_need, read_tflite
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import difference, reference_inputs, run_reference, scale_of
from onnxfold.export.tflite.convert import Ports, convert, fix_to_one_sample
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import save
from onnxfold.graph.tensors import Array
from onnxfold.machine.python import python

INSTALL = "pip install tflite-micro"
_TIMEOUT_S = 120.0
# Allocates an arena for a file, of a size, with so many inputs, runs once on zeros, and prints what was allocated, to
# the standard error stream of C++. An arena that is too small may end the process.
_ALLOCATE = """
import sys, numpy
from tflite_micro.python.tflite_micro import runtime
interpreter = runtime.Interpreter.from_file(sys.argv[1], arena_size=int(sys.argv[2]))
for index in range(int(sys.argv[3])):
    detail = interpreter.get_input_details(index)
    interpreter.set_input(numpy.zeros(detail["shape"], detail["dtype"]), index)
interpreter.invoke()
interpreter.print_allocations()
"""
_ALLOCATED = re.compile(r"Arena allocation (head|tail) (\d+) bytes")


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """A model to be measured, and what it should compute."""

    onnx: str  # path of the ONNX model; every input has a fixed shape, with batch 1
    name: str
    inputs: Sequence[Mapping[str, Array]]  # inputs of one inference each, by name and in the order of the model
    #: The outputs for each of them, in the order of the model: onnxruntime's, without graph optimisations.
    reference: Sequence[Sequence[Array]]
    work: Path  # scratch folder, removed when the benchmark ends
    warm_up: int = 10  # inferences before, and in, the measurement
    repeats: int = 100
    threads: int = 1  # threads of the runtime, where it has any

    @property
    def tflite(self) -> Path:
        """Where :func:`write_tflite` writes."""
        return self.work / "model.tflite"


class Runner(Protocol):
    """A means to measure."""

    def missing(self) -> str:
        """Return the missing programs or packages and how to install them, in one line; '' if none is missing."""

    def run(self, job: BenchJob, device: DeviceProfile) -> list[BenchResult]:
        """Measure a job; what goes wrong with a board or a tool is a row, never an exception."""


def prepare_job(
    model: str | Path, work: Path, inputs: Sequence[Mapping[str, Array]] | None = None, *,
    input_shapes: Mapping[str, Sequence[int]] | None = None, samples: int = 20, seed: int = 0, **fields: Any,
) -> BenchJob:  # fmt: skip
    """Write a model for inferences of one sample, and compute what it should give for inputs, or for generated ones."""
    view = open_model(model, input_shapes)
    fix_to_one_sample(view)
    path = work / "model.onnx"
    save(view, path)
    batches = reference_inputs(view, samples=samples, seed=seed) if inputs is None else inputs
    job_inputs = [{name: np.asarray(feeds[name]) for name in view.input_names} for feeds in batches]
    reference = [list(outputs.values()) for outputs in run_reference(path, job_inputs)]
    fields = {"name": Path(model).stem, **fields}
    return BenchJob(onnx=str(path), inputs=job_inputs, reference=reference, work=work, **fields)


def relative_error(reference: Sequence[Sequence[Array]], outputs: Sequence[Sequence[Array]]) -> float:
    """Return the largest difference over the largest reference value, of all inferences and outputs.

    Outputs may have any shape of the same size; what is not finite on one side only differs infinitely.
    """
    worst = 0.0
    for expected, got in zip(zip(*reference, strict=True), zip(*outputs, strict=True), strict=True):
        a, b = (np.concatenate([np.asarray(v, np.float64).reshape(-1) for v in side]) for side in (expected, got))
        try:
            error = difference("", a, b)
        except ExportError:  # another size, or not finite at the same places
            return float("inf")
        worst = max(worst, error / scale_of(a, None)[0])
    return worst


def deviation(job: BenchJob, outputs: Sequence[Sequence[Array]], tolerance: float) -> tuple[float, str]:
    """Return the error of the first outputs of a job, and in words why they are not onnxruntime's, '' if they are."""
    error = relative_error(job.reference[: len(outputs)], outputs)
    reason = f"outputs differ from onnxruntime's by {error:.2g} of the largest, more than {tolerance:g}"
    return error, "" if error <= tolerance else reason


def write_tflite(job: BenchJob) -> Ports:
    """Write a job's model as float32 TFLite into its scratch folder; the runners of a job share the file."""
    view = load(job.onnx)
    PREPARE(view)
    converted = convert(view)
    job.tflite.write_bytes(converted.to_bytes(view.graph.name))
    return converted.ports


def needs(job: BenchJob) -> MemoryNeed:
    """Return the memory of a model in TensorFlow Lite Micro; figures not to be had there are counted on the ONNX graph.

    The arena is also allocated on this machine, where that is possible; a larger one than planned counts.
    """
    try:
        ports = write_tflite(job)
        need = read_tflite(job.tflite).need
    except ExportError as error:
        return counted_need(load(job.onnx), str(error))
    arena = measure_arena(job.tflite, len(ports.inputs), need.arena_bytes or 0)
    if isinstance(arena, str):
        return replace(need, basis=f"{need.basis}; not allocated here: {arena}")
    return replace(
        need,
        activation_bytes=max(need.activation_bytes or 0, arena["head"]),
        table_bytes=max(need.table_bytes, arena["tail"]),
        basis=f"{need.basis}; on this machine the arena takes {sum(arena.values()):,} bytes",
    )


def measure_arena(tflite: Path, inputs: int, activation_bytes: int) -> dict[str, int] | str:
    """Return the bytes of an arena: 'head', activations and scratch memory, and 'tail', tables that stay.

    What stands against allocating it is returned in words.
    """
    if find_spec("tflite_micro") is None:
        return f"tflite-micro is not installed: {INSTALL}"
    command = python("-c", _ALLOCATE, str(tflite), str(4 * activation_bytes + (1 << 20)), str(inputs))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"tflite-micro did not finish within {_TIMEOUT_S:g} s"
    sizes = {part: int(size) for part, size in _ALLOCATED.findall(done.stderr)}
    if done.returncode or len(sizes) < 2:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"tflite-micro does not run the model: {lines[-1][:200]}"
    return sizes
