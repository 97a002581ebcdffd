"""The .tflite file of a model as a C array, and its settings for TensorFlow Lite Micro."""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from onnxfold.errors import ExportError
from onnxfold.export.firmware.activation_plan import Buffer, aligned, plan
from onnxfold.export.tflite.schema import schema

#: Operators whose method of MicroMutableOpResolver is not the name with capitals for underscores.
_METHODS = {
    "BATCH_MATMUL": "BatchMatMul",
    "CUMSUM": "CumSum",
    "PADV2": "PadV2",
    "RELU_0_TO_1": "Relu0To1",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}
#: What the interpreter keeps in the arena beside activations: nodes, registrations, evaluation tensors, and kernels'
#: data. Bytes for the interpreter, per operator and per tensor; raise MODEL_ARENA_BYTES where this is not enough.
_TABLES = (2048, 384, 96)
_ELEMENT_BYTES = {
    "FLOAT32": 4, "FLOAT16": 2, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT16": 2, "INT32": 4, "UINT32": 4,
    "INT64": 8, "UINT64": 8, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True)
class TflmModel:
    """Contents of a .tflite file.

    Parameters
    ----------
    operators : tuple of str
        Names of the operators, each once.
    arena_bytes : int
        Memory for activations and the interpreter's tables.
    """

    operators: tuple[str, ...]
    arena_bytes: int


def read_tflite(path: Path) -> TflmModel:
    """Read operators and the memory of activations from a .tflite file.

    Raises
    ------
    ExportError
        If the schema is not installed, or a tensor has an element type without size.
    """
    model = schema().ModelT.InitFromObj(schema().Model.GetRootAsModel(path.read_bytes(), 0))
    names = {v: k for k, v in vars(schema().BuiltinOperator).items() if not k.startswith("_")}
    codes = [names[max(c.builtinCode, c.deprecatedBuiltinCode)] for c in model.operatorCodes]
    (graph,) = model.subgraphs
    activations = plan(_buffers(model, graph))
    interpreter, per_operator, per_tensor = _TABLES
    tables = interpreter + per_operator * len(graph.operators) + per_tensor * len(graph.tensors)
    return TflmModel(tuple(sorted(set(codes))), aligned(activations + tables))


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


def _buffers(model: Any, graph: Any) -> list[Buffer]:
    """Return the memory of every tensor that is not a constant."""
    end = len(graph.operators)
    first = {int(i): 0 for i in graph.inputs}
    last = {int(i): 0 for i in graph.inputs} | {int(i): end for i in graph.outputs}
    for place, operator in enumerate(graph.operators):
        for i in (int(o) for o in operator.outputs):
            first.setdefault(i, place)
            last[i] = max(last.get(i, place), place)
        for i in (int(o) for o in operator.inputs if o >= 0):
            last[i] = max(last.get(i, place), place)
    types = {v: k for k, v in vars(schema().TensorType).items() if not k.startswith("_")}
    found = []
    for index, tensor in enumerate(graph.tensors):
        data = model.buffers[tensor.buffer].data
        if index not in first or (data is not None and len(data)):
            continue
        size = _ELEMENT_BYTES.get(types[tensor.type])
        if size is None:
            raise ExportError(f"tensor '{tensor.name}' has elements of type {types[tensor.type]}, which have no size")
        shape = [int(d) for d in tensor.shape] if tensor.shape is not None else []
        found.append(Buffer(aligned(size * prod(shape)), first[index], last[index]))
    return found
