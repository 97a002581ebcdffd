"""A job on a device under test: inputs in the firmware's layout, outputs converted back to ONNX's."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.edge_bench.boards.dut import DeviceError, Dut, DutTensor, Inference, Signature
from onnxfold.edge_bench.job import BenchJob, relative_error
from onnxfold.graph.files.load import load
from onnxfold.graph.tensors import Array

#: Outputs of a device may differ from onnxruntime's by this much of the largest one: the order of float32 sums.
TOLERANCE = 1e-5
_FEWEST = 3


@dataclass(frozen=True)
class DeviceOutputs:
    """Outputs of a device for the first inputs of a job."""

    outputs: list[list[Array]]  # in the order of inputs and of the model's outputs
    inferences: list[Inference]  # one per input, with its times

    def error(self, job: BenchJob) -> float:
        """Return the largest difference to the references over the largest reference value."""
        return relative_error(job.reference[: len(self.outputs)], self.outputs)


def deviation(error: float) -> str:
    """Return why outputs are not onnxruntime's, '' if they are within the tolerance."""
    if error <= TOLERANCE:
        return ""
    return f"outputs differ from onnxruntime's by {error:.2g} of the largest, more than {TOLERANCE:g}"


def answers(
    dut: Dut,
    job: BenchJob,
    signature: Signature,
    timeout_s: float,
    *,
    budget_s: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
) -> DeviceOutputs:
    """Run inputs of a job once each, until the time is up: large inputs take long on a serial line."""
    names = load(job.onnx).input_names
    outputs: list[list[Array]] = []
    inferences: list[Inference] = []
    deadline = clock() + budget_s
    for feeds, reference in zip(job.inputs, job.reference, strict=True):
        if len(outputs) >= _FEWEST and clock() > deadline:
            break
        load_input(dut, [np.asarray(feeds[n]) for n in names], signature)
        inferences.append(dut.infer(1, 0, timeout_s))
        outputs.append(_split(inferences[-1].results, reference, signature.outputs))
    return DeviceOutputs(outputs, inferences)


def load_input(dut: Dut, values: Sequence[Array], signature: Signature) -> None:
    """Load the inputs of one inference, in the order of the model."""
    tensors = signature.inputs or tuple(_plain(v) for v in values)
    if len(tensors) != len(values):
        raise DeviceError(_other_model(f"{len(tensors)} inputs", f"{len(values)}"))
    dut.load(b"".join(_bytes(v, t) for v, t in zip(values, tensors, strict=True)))


def _bytes(values: Array, tensor: DutTensor) -> bytes:
    placed = values.transpose(tensor.axes) if len(tensor.axes) == values.ndim else values
    if placed.shape != tensor.shape:
        raise DeviceError(_other_model(f"input '{tensor.name}' of shape {tensor.shape}", f"{placed.shape}"))
    if placed.dtype.kind == "f" and np.dtype(tensor.element_type).kind != "f":
        raise DeviceError(
            f"the firmware takes '{tensor.name}' as {tensor.element_type}, and outputs are compared in float32: export "
            "the project without --dtype"
        )
    return np.ascontiguousarray(placed, dtype=np.dtype(tensor.element_type).newbyteorder("<")).tobytes()


def _split(results: Sequence[float], reference: Sequence[Array], tensors: Sequence[DutTensor]) -> list[Array]:
    tensors = tensors or tuple(_plain(np.asarray(r)) for r in reference)
    expected = sum(np.asarray(r).size for r in reference)
    if len(results) != expected or len(tensors) != len(reference):
        raise DeviceError(_other_model(f"{len(results)} output values", f"{expected}"))
    arrays, start = [], 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape, dtype=np.int64))
        values = np.asarray(results[start : start + size], np.float64).reshape(tensor.shape)
        arrays.append(values.transpose(np.argsort(tensor.axes)) if tensor.axes else values)
        start += size
    return arrays


def _plain(values: Array) -> DutTensor:
    return DutTensor("", str(values.dtype), values.shape, tuple(range(values.ndim)))


def _other_model(has: str, wanted: str) -> str:
    return f"the firmware holds another model: it has {has}, the model here {wanted}; upload the firmware of this one"
