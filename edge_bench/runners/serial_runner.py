"""Runner for a board on a serial port that speaks MLPerf Tiny's protocol and uses its own clock."""

import statistics
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from onnxfold.budget.devices import DeviceProfile
from onnxfold.edge_bench.boards.dut import TOLERANCE, DeviceError, Dut, answers
from onnxfold.edge_bench.job import BenchJob, deviation
from onnxfold.edge_bench.result import BenchResult
from onnxfold.errors import OnnxFoldError

#: Limit of seconds of inferences per model, for any number of repeats.
_BUDGET_S = 60.0
_FEWEST = 5
_BAUD = 115200


class SerialStream:
    """A serial port as a stream of bytes, through pyserial."""

    def __init__(self, port: str) -> None:
        serial: Any = import_module("serial")
        list_ports: Any = import_module("serial.tools.list_ports")
        try:
            self._serial: Any = serial.Serial(port, _BAUD, exclusive=True)
        except (OSError, ValueError) as error:  # SerialException is an OSError
            there = ", ".join(sorted(p.device for p in list_ports.comports())) or "none"
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())[:120]
            raise DeviceError(f"port '{port}' cannot be opened ({reason}); serial ports here: {there}") from None

    def read(self, timeout_s: float) -> bytes:
        """Return the bytes that have come, waiting at most that long for the first; b'' if none came."""
        self._serial.timeout = max(timeout_s, 0)
        first: bytes = self._serial.read(1)
        return first + (self._serial.read(self._serial.in_waiting) if first else b"")

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send all of it, or raise OSError when the time is over."""
        self._serial.write_timeout = timeout_s
        self._serial.write(data)

    def close(self) -> None:
        """Close the port."""
        self._serial.close()


@dataclass(frozen=True)
class SerialRunner:
    """Measures on a board that is plugged in and runs the firmware of the job's model."""

    port: str
    timeout_s: float = 60.0  # seconds that one inference may take
    connect_s: float = 10.0  # seconds that the board may take to answer at first: opening the port restarts many boards

    def missing(self) -> str:
        """Return the missing package."""
        return "" if find_spec("serial") is not None else "pyserial missing: pip install pyserial"

    def run(self, job: BenchJob, device: DeviceProfile) -> list[BenchResult]:
        """Return one row."""
        row: dict[str, Any] = {"model": job.name, "device": device.name, "method": "measured-device"}
        try:
            dut = Dut(SerialStream(self.port), f"the board on {self.port}")
        except DeviceError as error:
            return [BenchResult(**row, status="unavailable", reason=str(error))]
        try:
            return [BenchResult(**row, **self._measure(dut, job, device))]
        except OnnxFoldError as error:
            return [BenchResult(**row, status="failed", reason=str(error))]
        finally:
            dut.close()

    def _measure(self, dut: Dut, job: BenchJob, device: DeviceProfile) -> dict[str, Any]:
        """Return the fields of a row."""
        board = dut.connect(self.connect_s)
        said = dut.profile()
        signature = dut.signature()
        outputs, inferences = answers(dut, job, signature, self.timeout_s)
        slowest_s = max(i.microseconds for i in inferences) * 1e-6
        repeats = max(_FEWEST, min(job.repeats, int(_BUDGET_S / max(slowest_s, 1e-6))))
        warm_up = min(job.warm_up, repeats)
        limit_s = max(5.0, 10 * slowest_s)
        if warm_up:
            dut.infer(warm_up, 0, limit_s * warm_up)
        times = [dut.infer(1, 0, limit_s).microseconds * 1e-6 for _ in range(repeats)]
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        error, reason = deviation(job, outputs, TOLERANCE)
        sizes = dut.memory()
        memory: dict[str, Any] = {}
        if "static" in sizes or "flash" in sizes:
            ram = sizes["static"] + sizes.get("stack", 0) if "static" in sizes else None
            how = "stated by the firmware: variables with activations, stack's high-water mark, whole application"
            memory = {"ram_bytes": ram, "flash_bytes": sizes.get("flash"), "memory": how}
        latency = {} if reason else {"latency_s": median, "latency_low_s": low, "latency_high_s": high}
        return {
            "status": "failed" if reason else "ok", "reason": reason, **latency, **memory,
            "runtime": signature.runtime or "as in the board's firmware", "clock_hz": device.clock_hz,
            "warm_up": warm_up, "repeats": repeats,
            "max_relative_error": error, "compared_inputs": len(outputs),
            "basis": "measured by the board's clock", "details": {"board": board, **said},
        }  # fmt: skip
