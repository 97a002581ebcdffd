"""Inputs, outputs and operators of a model, and the memory of a board, in the files of a project."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from onnxfold.errors import ExportError
from onnxfold.graph.view import GraphView

#: Stack of firmware for QEMU.
STACK_BYTES = 8192
#: Element types of the protocol, as numpy calls them.
ELEMENT_TYPES = ("float32", "int8", "uint8", "int32", "int64", "bool")

#: Operators whose method of MicroMutableOpResolver is not the name with capitals for underscores.
_METHODS = {
    "BATCH_MATMUL": "BatchMatMul", "CUMSUM": "CumSum", "PADV2": "PadV2", "RELU_0_TO_1": "Relu0To1",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """An input or output."""

    name: str  # its name in the ONNX model
    element_type: str  # one of the names in `ELEMENT_TYPES`
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # the axis of the ONNX model that each axis in memory is

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an element."""
        return np.dtype(self.element_type)

    @property
    def size_bytes(self) -> int:
        """Size of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of a model, in sequence in memory, without gaps."""

    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()

    @property
    def input_bytes(self) -> int:
        """Size of all inputs."""
        return sum(t.size_bytes for t in self.inputs)

    @property
    def output_bytes(self) -> int:
        """Size of all outputs."""
        return sum(t.size_bytes for t in self.outputs)


def read_interface(
    view: GraphView, layouts: dict[str, tuple[int, ...]] | None = None, int8: Collection[str] = ()
) -> Interface:
    """Return the inputs and outputs of a model whose shapes are fixed."""
    sides = [
        tuple(_tensor(view, n, layouts or {}, int8) for n in names) for names in (view.input_names, view.output_names)
    ]
    for side in sides:
        for tensor, offset in zip(side, offsets(side), strict=True):
            if offset % tensor.dtype.itemsize:
                raise ExportError(f"'{tensor.name}' follows tensors of smaller elements, which firmware cannot align")
    return Interface(*sides)


def offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return where tensors begin that lie in sequence in memory, in bytes."""
    return [0, *accumulate(t.size_bytes for t in tensors)][: len(tensors)]


def tensors_c(interface: Interface) -> str:
    """Return `model_tensors.c`."""
    tables = (("model_inputs", "MODEL_INPUTS", interface.inputs), ("model_outputs", "MODEL_OUTPUTS", interface.outputs))
    return '#include "model_run.h"\n' + "".join(_table(*table) for table in tables)


def config_h(interface: Interface, name: str, device: str, runtime: str, arena_bytes: int, arena: str = "") -> str:
    """Return `model_config.h`."""
    include, _, attribute = arena.rpartition("\n")
    defined = {
        "MODEL_NAME": c_string(name), "DEVICE_NAME": c_string(device), "MODEL_RUNTIME": c_string(runtime),
        "MODEL_INPUTS": len(interface.inputs), "MODEL_OUTPUTS": len(interface.outputs),
        "MODEL_INPUT_BYTES": interface.input_bytes, "MODEL_OUTPUT_BYTES": interface.output_bytes,
        "MODEL_ARENA_BYTES": arena_bytes, "MODEL_ARENA_ATTRIBUTE": attribute,
    }  # fmt: skip
    lines = [f"#define {key} {value}".rstrip() for key, value in defined.items()]
    head = "/* Written by onnxfold. */\n#ifndef MODEL_CONFIG_H\n#define MODEL_CONFIG_H\n\n"
    return head + "\n".join([*([include, ""] if include else []), *lines, "", "#endif", ""])


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


def memory_ld(flash_bytes: int, ram_bytes: int, *, weights_bytes: int = 0) -> str:
    """Return `memory.ld`: the memory of mps2-an386 that a project may use; with some for weights, the board's PSRAM."""
    weights = (
        f"    WEIGHTS (r) : ORIGIN = 0x21000000, LENGTH = {weights_bytes}\n}}\n"
        if weights_bytes
        else '}\nREGION_ALIAS("WEIGHTS", FLASH)\n'
    )
    return (
        "/* Memory that the firmware may use. The board has 4 MB each at these addresses. */\n"
        "MEMORY\n{\n"
        f"    FLASH (rx) : ORIGIN = 0x00000000, LENGTH = {flash_bytes}\n"
        f"    RAM (rwx) : ORIGIN = 0x20000000, LENGTH = {ram_bytes}\n"
        f"{weights}"
        f"STACK_BYTES = {STACK_BYTES};\n"
    )


def c_string(text: str) -> str:
    """Return a C string that holds what of a text the protocol can carry; the rest becomes '_'."""
    return '"' + "".join(c if c.isascii() and c.isprintable() and c not in '"\\%[]' else "_" for c in text) + '"'


def _table(name: str, count: str, tensors: Sequence[Tensor]) -> str:
    rows = []
    for tensor, offset in zip(tensors, offsets(tensors), strict=True):
        shape, axes = "x".join(map(str, tensor.shape)), " ".join(map(str, tensor.axes))
        places = f'MODEL_{tensor.element_type.upper()}, {prod(tensor.shape)}, {offset}, "{shape}", "{axes}"'
        rows.append(f"    {{{places}, {c_string(tensor.name)}}},\n")
    return f"\nconst model_tensor {name}[{count}] = {{\n{''.join(rows)}}};\n"


def _tensor(view: GraphView, name: str, layouts: dict[str, tuple[int, ...]], int8: Collection[str]) -> Tensor:
    shape, element_type = view.shape(name), view.elem_type(name)
    if not element_type:
        raise ExportError(f"the type of '{name}' is unknown: shape inference does not know an operator before it")
    kind = "int8" if name in int8 else str(helper.tensor_dtype_to_np_dtype(element_type))
    if kind not in ELEMENT_TYPES:
        raise ExportError(f"'{name}' has an element type that firmware cannot send: use float32, an integer or bool")
    if shape is None or None in shape:
        raise ExportError(f"'{name}' has no fixed shape: give --input-shapes for every free dimension")
    axes = layouts.get(name, tuple(range(len(shape))))
    sizes = tuple(int(shape[axis] or 0) for axis in axes)
    return Tensor(name, kind, sizes, axes)


#: What vector units and caches like, and TensorFlow Lite Micro uses.
ALIGNMENT = 16


@dataclass(eq=False)
class Buffer:
    """Memory that is needed from one node to another."""

    size_bytes: int
    first: int  # the nodes, by their place in the order of execution, that write it first and read it last
    last: int
    offset: int = 0  # its place, set by :func:`plan`


def plan(buffers: Sequence[Buffer]) -> int:
    """Give every buffer an offset such that buffers needed at the same time do not overlap; return the bytes in all.

    The largest are placed first, of equal ones the last first, each in the lowest gap that holds it: "greedy by size
    for offset calculation" of Pisarchyk and Lee, Efficient memory management for deep neural net inference (arXiv
    2001.03288), in the order in which TensorFlow Lite Micro does it.
    """
    placed: list[Buffer] = []
    for _, buffer in sorted(enumerate(buffers), key=lambda entry: (-entry[1].size_bytes, -entry[0])):
        offset = 0
        for other in sorted(placed, key=lambda b: b.offset):
            if other.last < buffer.first or buffer.last < other.first:
                continue
            if offset + buffer.size_bytes <= other.offset:
                break
            offset = max(offset, align(other.offset + other.size_bytes))
        buffer.offset = offset
        placed.append(buffer)
    return max((align(b.offset + b.size_bytes) for b in placed), default=0)


def align(size_bytes: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
