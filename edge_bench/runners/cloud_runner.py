"""Runner for estimates by Edge Impulse, with the user's own key."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.job import BenchJob, write_tflite
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import ExportError

KEY = "EI_API_KEY"
PACKAGE = "edgeimpulse"
_RUNTIME = "TensorFlow Lite Micro by Edge Impulse"


@dataclass(frozen=True)
class CloudRunner:
    """Has Edge Impulse profile the exported float32 model; the model is sent to them."""

    timeout_s: float = 600.0  # time to wait for the answer
    name: str = "cloud"

    def missing(self) -> str:
        """Return the missing part: the key, or the package."""
        if not os.environ.get(KEY):
            return f"no key of Edge Impulse: set {KEY}"
        return (
            "" if find_spec(PACKAGE) is not None else f"Edge Impulse's package is not installed: pip install {PACKAGE}"
        )

    def run(self, job: BenchJob, device: DeviceProfile | None) -> list[BenchResult]:
        """Ask for one device."""
        name = device.edge_impulse_device if device is not None else ""
        row = _rows(job, device)
        if not name:
            return [row(status="unavailable", reason="Edge Impulse does not know this device")]
        try:
            file = write_tflite(job)
        except ExportError as error:
            return [row(status="failed", reason=f"Edge Impulse accepts TFLite files: {error}")]
        try:
            service: Any = import_module(PACKAGE).model
            if name not in service.list_profile_devices():
                return [row(status="unavailable", reason=f"'{name}' is not in Edge Impulse's list of devices")]
            estimate = service.profile(
                model=str(file.path), device=name, api_key=os.environ[KEY], timeout_sec=self.timeout_s
            ).model.profile_info.float32
        except Exception as error:  # the package raises its own, its HTTP client's and pydantic's
            text = " ".join(str(error).replace(os.environ[KEY], "***").split())[:200] or type(error).__name__
            return [row(status="failed", reason=f"Edge Impulse: {text}")]
        return [_row(row, name, estimate)]


def _row(row: Callable[..., BenchResult], name: str, estimate: Any) -> BenchResult:
    reason = getattr(estimate, "mcu_support_error", None) or getattr(estimate, "profiling_error", None)
    if estimate is None or estimate.time_per_inference_ms is None:
        return row(status="failed", reason=f"Edge Impulse has no estimate: {reason or 'it does not say why'}")
    memory = estimate.memory.tflite if estimate.memory is not None else None
    return row(
        latency_s=estimate.time_per_inference_ms / 1e3,
        ram_bytes=memory and memory.ram,
        flash_bytes=memory and memory.rom,
        memory="Edge Impulse's estimate" if memory else "",
        basis=f"Edge Impulse's estimate for '{name}', in whole milliseconds",
        details={"edge_impulse_device": name, "arena_bytes": memory and memory.arena_size},
    )


def _rows(job: BenchJob, device: DeviceProfile | None) -> Callable[..., BenchResult]:
    def row(**fields: Any) -> BenchResult:
        return BenchResult(
            model=job.name, device=device.name if device is not None else "unknown", method="cloud-estimate",
            runtime=_RUNTIME, **fields,
        )  # fmt: skip

    return row
