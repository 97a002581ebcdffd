"""Memory needs of a model, and the boards of projects, which have room for it or not.

A need is that in TensorFlow Lite Micro, read from the .tflite file, or counted on the graph where the model cannot be
exported.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from onnxfold.budget.costs.memory import count_flash, count_ram
from onnxfold.budget.costs.weights import BatchOfOne
from onnxfold.budget.devices import DeviceProfile, MemoryNeed, load_device, misfit
from onnxfold.errors import ConfigError, ExportError, UnsupportedModelError
from onnxfold.export.api import export_model, open_model
from onnxfold.export.firmware.interface import STACK_BYTES, Buffer, align, plan
from onnxfold.export.tflite.convert import fix_to_one_sample
from onnxfold.export.tflite.graph import NUMPY_TYPES, schema
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView

RUNTIME = "TensorFlow Lite Micro"
#: Of the Arduino Nano 33 BLE: the memory that firmware for QEMU is linked for.
FLASH_BYTES = 1_048_576
RAM_BYTES = 262_144
#: The boards that projects are for, by their profiles.
BOARDS = {"arduino": "arduino-nano-33-ble", "esp-idf": "esp-eye"}
#: Protocol, C library and start-up code of firmware for QEMU, rounded up.
_BARE_FLASH_BYTES, _BARE_RAM_BYTES = 16_384, 1024


def need_of(view: GraphView, dtype: str = "float32") -> MemoryNeed:
    """Return the memory need of a model in TensorFlow Lite Micro; a model that cannot be exported is counted."""
    try:
        with tempfile.TemporaryDirectory(prefix="onnxfold-need-") as folder:
            fixed_view = open_model(to_model(view), view.run_shapes or None)
            fix_to_one_sample(fixed_view)
            path = Path(folder) / "model.tflite"
            export_model(to_model(fixed_view), path, dtype=dtype, verify=False)
            return read_tflite(path).need
    except (ConfigError, ExportError, UnsupportedModelError) as error:
        return counted_need(view, str(error), shrinks=4 if dtype == "int8" else 1)


def counted_need(view: GraphView, why: str, *, shrinks: int = 1) -> MemoryNeed:
    """Return the least memory need of a model, counted on its graph, with the reason why it is not known better."""
    try:
        sizes = BatchOfOne(view)
        ports = (*view.input_names, *view.output_names)
        buffers = sum(sizes.element_bytes(name) * prod(sizes.shape(name)) for name in ports)
    except UnsupportedModelError:
        buffers = 0
    ram = count_ram(view)
    return MemoryNeed(
        runtime=RUNTIME, model_bytes=count_flash(view) // shrinks, buffer_bytes=buffers // shrinks,
        activation_bytes=None if ram is None else ram // shrinks,
        basis=f"counted on the graph, lower bounds: {why}", is_exact=False,
    )  # fmt: skip


def board_of(kind: str, flash_bytes: int, ram_bytes: int) -> DeviceProfile:
    """Return the profile of the board of a project; of QEMU, with the memory that its firmware is linked for."""
    if kind in BOARDS:
        return load_device(BOARDS[kind])
    return replace(
        load_device(BOARDS["arduino"]), name="mps2-an386", flash_bytes=flash_bytes, ram_bytes=ram_bytes,
        usable_flash_fraction=1.0, usable_ram_fraction=1.0, runtime_flash_bytes=_BARE_FLASH_BYTES,
        runtime_ram_bytes=_BARE_RAM_BYTES, stack_bytes=STACK_BYTES,
    )  # fmt: skip


def advice_to_fit(need: MemoryNeed, board: DeviceProfile, dtype: str) -> str:
    """Return in one line why a model does not fit a board, and what to do; '' if it fits."""
    reason = misfit(need, board)
    smaller = "give --dtype int8 or smaller" if (need.runtime, dtype) == (RUNTIME, "float32") else "give smaller"
    what_to_do = f"fold it with --device, or {smaller} inputs (--input-shapes)"
    return f"the model for {board.name} {reason}; {what_to_do}" if reason else ""


def require_room(need: MemoryNeed, board: DeviceProfile, dtype: str) -> None:
    """Raise ExportError if a model does not fit a board, whatever system and runtime take."""
    bare = replace(board, runtime_flash_bytes=0, runtime_ram_bytes=0, stack_bytes=0)
    if misfit(need, bare):
        raise ExportError(f"{advice_to_fit(need, board, dtype)}; nothing was written")


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
    tables = interpreter + per_operator * len(kinds) + per_tensor * len(graph.tensors) + per_channel * channels
    need = MemoryNeed(
        runtime=RUNTIME, model_bytes=len(content), activation_bytes=plan(buffers), table_bytes=align(tables),
        buffer_bytes=sum(_tensor_bytes(port, types) for port in ports),
        basis=f"RAM: arena of {RUNTIME} as it is exported, input and output; flash: the .tflite file",
    )  # fmt: skip
    int8 = frozenset(port.name.decode() for port in ports if types[port.type] == "INT8")
    return TflmModel(tuple(sorted(set(codes))), need, int8)


def _buffers(model: Any, graph: Any, types: Mapping[int, str]) -> list[Buffer]:
    """Return the memory of every tensor that is not a constant, in the order of the file."""
    uses: dict[int, list[int]] = defaultdict(list)  # the places of the operators that a tensor is held for
    inside = enumerate((*operator.inputs, *operator.outputs) for operator in graph.operators)
    for place, held in ((0, graph.inputs), *inside, (len(graph.operators), graph.outputs)):
        for i in held:
            uses[int(i)].append(place)
    is_constant = [buffer.data is not None and len(buffer.data) > 0 for buffer in model.buffers]
    return [
        Buffer(align(_tensor_bytes(tensor, types)), min(uses[i]), max(uses[i]))
        for i, tensor in enumerate(graph.tensors)
        if uses[i] and not is_constant[tensor.buffer]
    ]


def _tensor_bytes(tensor: Any, types: Mapping[int, str]) -> int:
    return NUMPY_TYPES[types[tensor.type]].itemsize * prod(map(int, () if tensor.shape is None else tensor.shape))
