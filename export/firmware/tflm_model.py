"""The .tflite file of a model as a C array, and its settings for TensorFlow Lite Micro."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from onnxfold.budget.devices import MemoryNeed
from onnxfold.errors import ExportError
from onnxfold.export.firmware.interface import Buffer, align, plan
from onnxfold.export.tflite.graph import NUMPY_TYPES, schema

RUNTIME = "TensorFlow Lite Micro"
#: Operators whose method of MicroMutableOpResolver is not the name with capitals for underscores.
_METHODS = {
    "BATCH_MATMUL": "BatchMatMul",
    "CUMSUM": "CumSum",
    "MIRROR_PAD": "MirrorPad",
    "PADV2": "PadV2",
    "RELU_0_TO_1": "Relu0To1",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}
#: What the interpreter keeps in the arena beside activations: nodes, registrations, evaluation tensors, and kernels'
#: data. Bytes for the interpreter, per operator, per tensor, and per channel that a kernel scales. Measured where
#: pointers have 64 bits, and rounded up; raise MODEL_ARENA_BYTES where this is not enough.
_TABLES = (1024, 208, 24, 8)
#: Kernels with numbers per channel in any type, and those with such numbers in integers alone.
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
_SCALED = (*_CONVOLUTIONS, "FULLY_CONNECTED")
#: Kernels of integers that add up in 32 bits, in scratch memory of the size of their result.
_ACCUMULATING = ("MEAN", "SUM", "TRANSPOSE_CONV")


@dataclass(frozen=True)
class TflmModel:
    """Contents of a .tflite file."""

    operators: tuple[str, ...]  # names of the operators, each once
    need: MemoryNeed  # the file, and the memory for activations, the interpreter's tables, inputs and outputs
    int8: frozenset[str] = frozenset()  # names of inputs and outputs in int8

    @property
    def arena_bytes(self) -> int:
        """Memory for activations and the interpreter's tables."""
        return self.need.arena_bytes or 0


def read_tflite(path: Path) -> TflmModel:
    """Read operators and the memory of activations from a .tflite file."""
    content = path.read_bytes()
    model = schema().ModelT.InitFromObj(schema().Model.GetRootAsModel(content, 0))
    names = {v: k for k, v in vars(schema().BuiltinOperator).items() if not k.startswith("_")}
    codes = [names[max(c.builtinCode, c.deprecatedBuiltinCode)] for c in model.operatorCodes]
    (graph,) = model.subgraphs
    kinds = [codes[operator.opcodeIndex] for operator in graph.operators]
    types = {v: k for k, v in vars(schema().TensorType).items() if not k.startswith("_")}
    results = [graph.tensors[int(operator.outputs[0])] for operator in graph.operators]
    integers = [types[tensor.type] in ("INT8", "INT16") for tensor in results]
    buffers = _buffers(model, graph, types)
    channels = 0
    for place, (kind, result, whole) in enumerate(zip(kinds, results, integers, strict=True)):
        if kind in _CONVOLUTIONS or (kind in _SCALED and whole):
            channels += int(result.shape[-1])
        if kind in _ACCUMULATING and whole:
            buffers.append(Buffer(align(4 * prod(int(d) for d in result.shape)), place, place))
    ports = [graph.tensors[int(i)] for i in (*graph.inputs, *graph.outputs)]
    interpreter, per_operator, per_tensor, per_channel = _TABLES
    need = MemoryNeed(
        runtime=RUNTIME,
        model_bytes=len(content),
        activation_bytes=plan(buffers),
        table_bytes=align(
            interpreter + per_operator * len(kinds) + per_tensor * len(graph.tensors) + per_channel * channels
        ),
        buffer_bytes=sum(_size(port, types) for port in ports),
        basis=f"RAM: arena of {RUNTIME} as it is exported, input and output; flash: the .tflite file",
    )
    int8 = frozenset(port.name.decode() for port in ports if types[port.type] == "INT8")
    return TflmModel(tuple(sorted(set(codes))), need, int8)


def operators_h(operators: tuple[str, ...]) -> str:
    """Return `model_operators.h`: the resolver with just these operators."""
    calls = " &&\n         ".join(f"resolver.Add{method_of(o)}() == kTfLiteOk" for o in operators)
    return (
        "// Written by onnxfold: the operators of the model.\n"
        "#ifndef MODEL_OPERATORS_H\n#define MODEL_OPERATORS_H\n\n"
        f"using OperatorResolver = tflite::MicroMutableOpResolver<{len(operators)}>;\n\n"
        "static bool add_operators(OperatorResolver &resolver) {\n"
        f"  return {calls};\n"
        "}\n\n#endif\n"
    )


def method_of(operator: str) -> str:
    """Return the operator's name in the methods of MicroMutableOpResolver ('CONV_2D' is 'Conv2D')."""
    plain = "".join(part.capitalize() for part in operator.split("_"))
    return _METHODS.get(operator, plain.replace("2d", "2D").replace("3d", "3D"))


def _buffers(model: Any, graph: Any, types: Mapping[int, str]) -> list[Buffer]:
    """Return the memory of every tensor that is not a constant, in the order of the file."""
    end = len(graph.operators)
    first = {int(i): 0 for i in graph.inputs}
    last = {int(i): 0 for i in graph.inputs} | {int(i): end for i in graph.outputs}
    for place, operator in enumerate(graph.operators):
        for i in (int(o) for o in operator.outputs):
            first.setdefault(i, place)
            last[i] = max(last.get(i, place), place)
        for i in (int(o) for o in operator.inputs if o >= 0):
            last[i] = max(last.get(i, place), place)
    buffers = []
    for index, tensor in enumerate(graph.tensors):
        data = model.buffers[tensor.buffer].data
        if index in first and (data is None or not len(data)):
            buffers.append(Buffer(align(_size(tensor, types)), first[index], last[index]))
    return buffers


def _size(tensor: Any, types: Mapping[int, str]) -> int:
    dtype = NUMPY_TYPES.get(types[tensor.type])
    if dtype is None:
        raise ExportError(f"tensor '{tensor.name}' has elements of type {types[tensor.type]}, which have no size")
    return dtype.itemsize * prod(map(int, () if tensor.shape is None else tensor.shape))
