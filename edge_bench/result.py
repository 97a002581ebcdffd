"""One row of a device table, with the method that obtained it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

#: How a latency was obtained; every row carries one of these, and tables print it.
METHODS = (
    "measured-device",
    "emulated-instructions",
    "estimated-latency",
    "cloud-estimate",
    "paper-reported",
)
#: What became of a row. Only 'ok' rows have a latency or an instruction count; the others have a reason.
STATUSES = ("ok", "does-not-fit", "unavailable", "failed")


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """The subject of a row, how its figures were obtained, and what became of it.

    Parameters
    ----------
    model, device : str
        File name of the model; name of the device profile, or 'host'.
    method : str
        One of :data:`METHODS`: how latency or instruction count were obtained.
    status : str
        One of :data:`STATUSES`.
    reason : str
        Why there is no latency, and what to do about it; one line.
    """

    model: str
    device: str
    method: str
    status: str = "ok"
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model was run.

    Parameters
    ----------
    runtime : str
        Inference runtime and its version.
    threads : int
        Threads of the runtime.
    clock_hz : int, optional
        Clock of the processor while it was measured, or that an estimate is for.
    toolchain, flags : str
        Compiler and version, and its flags, where code was compiled.
    warm_up, repeats : int
        Inferences before, and in, the measurement.
    """

    runtime: str = ""
    threads: int = 1
    clock_hz: int | None = None
    toolchain: str = ""
    flags: str = ""
    warm_up: int = 0
    repeats: int = 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Time and memory that a model takes.

    Parameters
    ----------
    latency_s : float, optional
        Median seconds per inference.
    latency_low_s, latency_high_s : float, optional
        Quartiles of a measurement, ends of the range of an estimate.
    instructions : int, optional
        Instructions per inference, where they were counted.
    ram_bytes, flash_bytes : int, optional
        What the model takes; `memory` says how this was obtained.
    memory : str
        How the bytes were obtained, in words: 'TFLM arena on the host (upper bound)', 'ELF sections' and so on.
    """

    latency_s: float | None = None
    latency_low_s: float | None = None
    latency_high_s: float | None = None
    instructions: int | None = None
    ram_bytes: int | None = None
    flash_bytes: int | None = None
    memory: str = ""


@dataclass(frozen=True, kw_only=True)
class BenchResult(Figures, Setup, BenchRow):  # fields in JSON are in the order of the last class first
    """A model on a device.

    Parameters
    ----------
    max_relative_error : float, optional
        Largest difference to onnxruntime over the largest reference value; None where outputs were not compared.
    compared_inputs : int
        Number of inputs that outputs were compared on.
    basis : str
        What a latency rests on, in words: 'measured', instruction counts and range of cycles per instruction, and so
        on.
    details : mapping
        Everything else, as plain values.
    """

    max_relative_error: float | None = None
    compared_inputs: int = 0
    basis: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS or self.status not in STATUSES:
            raise ValueError(f"method '{self.method}' and status '{self.status}' should be in METHODS and STATUSES")
        if (self.status == "ok") == bool(self.reason):
            raise ValueError("a row without a measurement says why, and only such a row does")

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)
