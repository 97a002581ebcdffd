"""Memory needs of a model, and the boards of projects, which have room for it or not.

A need is that in TensorFlow Lite Micro, or counted on the graph where the model cannot be exported.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from onnxfold.budget.costs.memory import count_flash, count_ram
from onnxfold.budget.costs.weights import BatchOfOne
from onnxfold.budget.devices import DeviceProfile, MemoryNeed, load_device, misfit
from onnxfold.errors import ConfigError, ExportError, UnsupportedModelError
from onnxfold.export.api import export_model, open_model
from onnxfold.export.firmware.interface import STACK_BYTES
from onnxfold.export.firmware.tflm_model import RUNTIME, read_tflite
from onnxfold.export.tflite.convert import fix_to_one_sample
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView

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
            fixed_view = open_model(to_model(view), view.input_shapes or None)
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
        buffers = sum(_bytes(sizes, name) for name in (*view.input_names, *view.output_names))
    except UnsupportedModelError:
        buffers = 0
    ram = count_ram(view)
    return MemoryNeed(
        runtime=RUNTIME, model_bytes=count_flash(view) // shrinks, buffer_bytes=buffers // shrinks,
        activation_bytes=None if ram is None else ram // shrinks,
        basis=f"counted on the graph, lower bounds: {why}", is_exact=False,
    )  # fmt: skip


def _bytes(sizes: BatchOfOne, name: str) -> int:
    size = sizes.element_bytes(name)
    for length in sizes.shape(name):
        size *= length
    return size


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
