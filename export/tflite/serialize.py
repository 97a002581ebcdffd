"""Serialise a graph to the bytes of a .tflite file.

The file is built in one buffer of its final size; constants are computed one after the other as they are packed into
it, so that beside the buffer only one of them is in memory.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfold._version import __version__
from onnxfold.errors import ExportError
from onnxfold.export.tflite.graph import Graph, Operator, Value, make_options, number_of, schema, table
from onnxfold.export.tflite.layout import Dynamic

SIGNATURE = "serving_default"
METADATA = "onnxfold"

_FILE_IDENTIFIER = b"TFL3"
#: The schema's force_align of buffers; microcontrollers read floats in place.
_ALIGNMENT = 16
_LIMIT_BYTES = 2**31 - 2**20
#: Generous estimate of what an operator and its tensors take beside their constants.
_BYTES_PER_ENTRY = 1024
#: Numbers up to this one are also stored in the field that old runtimes read.
_LAST_OLD_CODE = 127


def serialize(graph: Graph, description: str, metadata: Mapping[str, object]) -> memoryview:
    """Return the file's content."""
    values = _values(graph)
    notes = json.dumps({"version": __version__, **metadata}, sort_keys=True).encode()
    constants, buffer_of = _buffers(values)
    size = sum(c.size_bytes + _ALIGNMENT for c in constants)
    size += _BYTES_PER_ENTRY * (len(values) + len(graph.operators) + 8) + len(notes)
    if size > _LIMIT_BYTES:
        raise ExportError(f"the file would have {size / 1e9:.1f} GB, the TFLite format holds 2 GB: fold more")
    index = {v: i for i, v in enumerate(values)}
    codes = {key: i for i, key in enumerate(dict.fromkeys((op.code, op.version) for op in graph.operators))}
    subgraph = table(
        "SubGraph", name="main", tensors=_tensors(graph, values, buffer_of),
        inputs=[index[v] for v in graph.inputs], outputs=[index[v] for v in graph.outputs],
        operators=[_operator(op, codes, index) for op in graph.operators],
    )  # fmt: skip
    inputs, outputs = (
        [table("TensorMap", name=v.name, tensorIndex=index[v]) for v in side] for side in (graph.inputs, graph.outputs)
    )
    buffers = [_Buffer(None), *(_Buffer(c) for c in constants), _Buffer(_text(notes))]
    model = table(
        "Model", version=3, description=description, operatorCodes=[_operator_code(*key) for key in codes],
        subgraphs=[subgraph], buffers=buffers, metadata=[table("Metadata", name=METADATA, buffer=len(buffers) - 1)],
        signatureDefs=[table("SignatureDef", signatureKey=SIGNATURE, inputs=inputs, outputs=outputs)],
    )  # fmt: skip
    return _packed(model, size)


def _packed(model: Any, size: int) -> memoryview:
    import flatbuffers  # comes with the schema, whose absence is reported first

    builder = flatbuffers.Builder(size)
    builder.Finish(model.Pack(builder), _FILE_IDENTIFIER)
    return memoryview(builder.Bytes)[builder.Head() :]


def inline_buffers(content: bytes) -> bytes | memoryview:
    """Return a file whose constants lie inside its FlatBuffer.

    Quantisers write large files with constants behind it, which TensorFlow Lite Micro does not look for: it takes them
    for activations, and computes with whatever its arena holds.
    """
    model = schema().ModelT.InitFromObj(schema().Model.GetRootAsModel(content, 0))
    if not any(buffer.offset for buffer in model.buffers):
        return content
    constants = [
        content[b.offset : b.offset + b.size] if b.offset else bytes(b.data) if b.data is not None else b""
        for b in model.buffers
    ]
    model.buffers = [_Buffer(_text(constant) if constant else None) for constant in constants]
    return _packed(model, len(content) + _ALIGNMENT * len(constants))


class _Buffer:
    """A BufferT that computes its data when it is packed, aligned as the schema demands."""

    def __init__(self, constant: Value | None) -> None:
        self.constant = constant

    def Pack(self, builder: Any) -> Any:  # noqa: N802  (the generated code calls it)
        """Write the data, then the table."""
        data = None
        if self.constant is not None:
            payload = self.constant.values().reshape(-1).view(np.uint8).data
            builder.StartVector(1, len(payload), _ALIGNMENT)
            builder.head -= len(payload)
            builder.Bytes[builder.head : builder.head + len(payload)] = payload
            data = builder.EndVector()
        schema().BufferStart(builder)
        if data is not None:
            schema().BufferAddData(builder, data)
        return schema().BufferEnd(builder)


def _text(content: bytes) -> Value:
    array = np.frombuffer(content, np.uint8)
    return Value(array.shape, "UINT8", METADATA, lambda: array)


def _values(graph: Graph) -> list[Value]:
    inside = (v for op in graph.operators for v in (*op.inputs, *op.outputs))
    return list(dict.fromkeys((*graph.inputs, *inside, *graph.outputs)))


def _buffers(values: list[Value]) -> tuple[list[Value], dict[Value, int]]:
    """Return one constant per distinct content, and the buffer of each constant; 0 is the empty buffer."""
    constants = [value for value in values if value.is_constant]
    sizes = Counter(value.size_bytes for value in constants)
    distinct: list[Value] = []
    buffer_of: dict[Value, int] = {}
    known: dict[tuple[int, bytes], int] = {}
    for value in constants:
        if sizes[value.size_bytes] > 1:
            key = (value.size_bytes, hashlib.blake2b(value.values().tobytes()).digest())
            if key in known:
                buffer_of[value] = known[key]
                continue
            known[key] = len(distinct) + 1
        distinct.append(value)
        buffer_of[value] = len(distinct)
    return distinct, buffer_of


def tensor_names(graph: Graph) -> dict[Value, str]:
    """Return the names of the tensors of a file."""
    repeats: dict[str, int] = {}
    # What the model's interface is called comes first, whatever else has the same name.
    ordered = dict.fromkeys((*graph.inputs, *graph.outputs, *_values(graph)))
    return {value: _unique(value.name, repeats) for value in ordered}


def _tensors(graph: Graph, values: list[Value], buffer_of: Mapping[Value, int]) -> list[Any]:
    names = tensor_names(graph)
    tensors = []
    for value in values:
        signature = [-1 if isinstance(d, Dynamic) else int(d) for d in value.shape]
        tensor = table(
            "Tensor", name=names[value], type=number_of("TensorType", value.element_type), hasRank=True,
            shape=[int(d) for d in value.shape], shapeSignature=signature if -1 in signature else None,
            buffer=buffer_of.get(value, 0),
        )  # fmt: skip
        tensors.append(tensor)
    return tensors


def _unique(name: str, repeats: dict[str, int]) -> str:
    fresh = name
    while fresh in repeats:
        repeats[name] += 1
        fresh = f"{name}_{repeats[name]}"
    repeats[fresh] = 0
    return fresh


def _operator_code(code: str, version: int) -> Any:
    number = number_of("BuiltinOperator", code)
    return table("OperatorCode", builtinCode=number, deprecatedBuiltinCode=min(number, _LAST_OLD_CODE), version=version)


def _operator(op: Operator, codes: Mapping[tuple[str, int], int], index: Mapping[Value, int]) -> Any:
    kind, options = make_options(op.code, op.options)
    return table(
        "Operator", opcodeIndex=codes[op.code, op.version], builtinOptionsType=kind, builtinOptions=options,
        inputs=[index[v] for v in op.inputs], outputs=[index[v] for v in op.outputs],
    )  # fmt: skip
