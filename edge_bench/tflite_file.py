"""The .tflite file of a job, and the layout of its inputs and outputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxfold.edge_bench.runners.runner import BenchJob
from onnxfold.export.fusion import PREPARE
from onnxfold.export.parity import from_layout, to_layout
from onnxfold.export.tflite.convert import Port, convert
from onnxfold.graph.files.load import load
from onnxfold.graph.tensors import Array


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
