"""Memory check of a model against a device profile, before any measurement."""

from dataclasses import replace

from onnxfold.budget.memory_need import MemoryNeed, misfit
from onnxfold.edge_bench.boards.arena import Arena, measure_arena
from onnxfold.edge_bench.runners.runner import BenchJob
from onnxfold.edge_bench.tflite_file import write_tflite
from onnxfold.errors import ExportError
from onnxfold.export.firmware.need import counted_need
from onnxfold.export.firmware.tflm_model import read_tflite
from onnxfold.graph.files.load import load

__all__ = ["misfit", "needs"]


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
    need = _at_least(need, arena)
    return replace(need, basis=f"{need.basis}; on this machine the arena takes {arena.total:,} bytes")


def _at_least(need: MemoryNeed, arena: Arena) -> MemoryNeed:
    return replace(
        need,
        activation_bytes=max(need.activation_bytes or 0, arena.head),
        table_bytes=max(need.table_bytes, arena.tail),
    )
