"""Memory check of a model against a device profile, before any measurement."""

from dataclasses import dataclass

from onnxfold.budget.costs.flash import count_flash
from onnxfold.budget.costs.ram import count_ram
from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.arena import Arena, measure_arena
from onnxfold.edge_bench.runners.runner import Job
from onnxfold.edge_bench.tflite_file import write_tflite
from onnxfold.errors import ExportError
from onnxfold.graph.load import load

_M = 1 << 20


@dataclass(frozen=True)
class Need:
    """Memory that a model needs on any device.

    Parameters
    ----------
    flash_bytes : int
        The model in read-only memory, without a runtime.
    activation_bytes : int or None
        Activations and scratch memory; None if not known.
    ram_bytes : int or None
        The whole arena, tables of the interpreter included, where it was measured; else the activations.
    memory : str
        How these were obtained.
    """

    flash_bytes: int
    activation_bytes: int | None
    ram_bytes: int | None
    memory: str


def needs(job: Job) -> Need:
    """Return what a model takes in TensorFlow Lite Micro; what cannot be had there is counted on the ONNX graph."""
    view = load(job.onnx)
    counted = count_ram(view)
    ram = "RAM: peak of activations, counted (lower bound)"
    try:
        file = write_tflite(job)
    except ExportError:
        return Need(count_flash(view), counted, counted, f"{ram}; flash: constants and graph, counted")
    flash = f"flash: {file.path.name} file"
    arena = measure_arena(file.path, len(file.inputs), counted or 0)
    if isinstance(arena, Arena):
        text = f"RAM: TFLM arena on the host (upper bound); {flash}"
        return Need(file.path.stat().st_size, arena.head, arena.total, text)
    return Need(file.path.stat().st_size, counted, counted, f"{ram}, {arena}; {flash}")


def misfit(need: Need, profile: DeviceProfile) -> str:
    """Return in one line why a model does not fit a device, '' if it does.

    Flash is compared with what bootloader and runtime leave; activations with what the system leaves, the tables of the
    interpreter being part of a profile's `runtime_ram_bytes`. M = 1024 K = 1,048,576 bytes.
    """
    reasons = []
    if need.flash_bytes > profile.model_flash_bytes:
        whole = need.flash_bytes + profile.runtime_flash_bytes
        usable = int(profile.flash_bytes * profile.usable_flash_fraction)
        reasons.append(
            f"needs {whole / _M:.2f} MB flash ({need.flash_bytes / _M:.2f} model, "
            f"{profile.runtime_flash_bytes / _M:.2f} runtime), has {profile.flash_bytes / _M:.4g} MB "
            f"({usable / _M:.2f} usable)"
        )
    if need.activation_bytes is not None and need.activation_bytes > profile.model_ram_bytes:
        reasons.append(
            f"needs {need.activation_bytes / 1024:,.0f} K RAM for activations, has "
            f"{profile.model_ram_bytes / 1024:,.0f} K beside system and runtime"
        )
    return f"does not fit: {'; '.join(reasons)}" if reasons else ""
