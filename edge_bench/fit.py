"""Memory need of a model, and its arena in TensorFlow Lite Micro, allocated on this machine.

Pointers here have 64 bits, on the boards 32: the tables of the interpreter (the arena's tail) are larger than on a
board, the activations (its head) the same. So the total is an upper bound for the same kernels; kernels that a vendor
optimised (CMSIS-NN, ESP-NN) may take scratch memory that the reference kernels do not.
"""

import re
import subprocess
from dataclasses import dataclass, replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from onnxfold.budget.devices import MemoryNeed
from onnxfold.edge_bench.job import BenchJob, write_tflite
from onnxfold.errors import ExportError
from onnxfold.export.firmware.need import counted_need
from onnxfold.export.firmware.tflm_model import read_tflite
from onnxfold.graph.files.load import load
from onnxfold.machine.python import python

INSTALL = "pip install tflite-micro"
_TIMEOUT_S = 120.0
_ALLOCATED = re.compile(r"Arena allocation (total|head|tail) (\d+) bytes")


@dataclass(frozen=True)
class Arena:
    """Bytes of an arena."""

    head: int  # activations and scratch memory; tables that stay
    tail: int

    @property
    def total(self) -> int:
        """Bytes altogether."""
        return self.head + self.tail


def needs(job: BenchJob) -> MemoryNeed:
    """Return the memory of a model in TensorFlow Lite Micro; figures not to be had there are counted on the ONNX graph.

    The arena is also allocated on this machine, where that is possible; a larger one than planned counts.
    """
    try:
        file = write_tflite(job)
        need = read_tflite(file.path).need
    except ExportError as error:
        return counted_need(load(job.onnx), str(error))
    arena = measure_arena(file.path, len(file.inputs), need.arena_bytes or 0)
    if isinstance(arena, str):
        return replace(need, basis=f"{need.basis}; not allocated here: {arena}")
    return replace(
        need,
        activation_bytes=max(need.activation_bytes or 0, arena.head),
        table_bytes=max(need.table_bytes, arena.tail),
        basis=f"{need.basis}; on this machine the arena takes {arena.total:,} bytes",
    )


def measure_arena(tflite: Path, inputs: int, activation_bytes: int) -> Arena | str:
    """Allocate a model's arena."""
    if find_spec("tflite_micro") is None:
        return f"tflite-micro is not installed: {INSTALL}"
    script = str(resources.files("onnxfold.edge_bench.boards").joinpath("arena_script.py"))
    command = python(script, str(tflite), str(4 * activation_bytes + (1 << 20)), str(inputs))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"tflite-micro did not finish within {_TIMEOUT_S:g} s"
    sizes = {part: int(size) for part, size in _ALLOCATED.findall(done.stderr)}
    if done.returncode or not {"head", "tail"} <= sizes.keys():
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"tflite-micro does not run the model: {lines[-1][:200]}"
    return Arena(sizes["head"], sizes["tail"])
