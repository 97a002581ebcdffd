"""The host's side of MLPerf Tiny's protocol for a device under test, over any stream of bytes.

Commands end in '%', replies in a line "m-ready"; lines "e-[...]" are errors. The conventions are those of the runner in
https://github.com/mlcommons/tiny (benchmark/runner, benchmark/api). Lines that begin with "x-" are additions of
onnxfold's firmware (:mod:`onnxfold.export.firmware`), without which the client works, too.

Every command has a deadline for its whole reply: a board that is silent, babbles or disappears ends in a
:class:`DeviceError` of one line.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from onnxfold.errors import OnnxFoldError

READY = "m-ready"
#: Bytes of input per command: MLPerf Tiny's runner sends as many, commands have room for 80 characters.
_BYTES_PER_COMMAND = 31
#: Longest reply: results of a million values. A board that sends more does not speak the protocol.
_REPLY_BYTES = 1 << 24
#: How long nothing must come for a line to be called silent.
_QUIET_S = 0.1
#: The time for one attempt to get an answer from a board that may still be starting.
_ATTEMPT_S = 1.0


class DeviceError(OnnxFoldError):
    """A board cannot be reached, or does not answer as it should."""


class ByteStream(Protocol):
    """A connection to a board; raises OSError when it is gone."""

    def read(self, timeout_s: float) -> bytes:
        """Return the bytes that have come, waiting at most that long for the first; b'' if none came."""

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send all of it, or raise OSError when the time is over."""

    def close(self) -> None:
        """Give the connection back."""


@dataclass(frozen=True)
class DutTensor:
    """An input or output as the firmware states it: name, type, shape in memory, and the ONNX axis of each axis."""

    name: str
    element_type: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """Description of the model in the firmware; empty if the firmware is not onnxfold's."""

    inputs: tuple[DutTensor, ...] = ()  # in the order of the model
    outputs: tuple[DutTensor, ...] = ()
    runtime: str = ""


@dataclass(frozen=True)
class Inference:
    """The answer to `infer`."""

    results: tuple[float, ...]  # all outputs, one after the other
    microseconds: int  # between both time stamps, for all iterations
    ticks: int | None = None  # the same in ticks of the firmware's clock


class Dut:
    """A device under test."""

    def __init__(
        self,
        stream: ByteStream,
        name: str,
        *,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._where, self._timeout_s, self._clock = stream, name, timeout_s, clock

    def connect(self, timeout_s: float = 10.0) -> str:
        """Wait until the board answers, and return its name.

        Bytes from before, half a command or the text of a boot loader, are passed over.
        """
        deadline = self._clock() + timeout_s
        heard: DeviceError | None = None
        while True:
            attempt_s = min(_ATTEMPT_S, max(deadline - self._clock(), 0.01))
            try:
                for line in self._exchange("name", attempt_s):
                    match = re.fullmatch(r"m-name-dut-\[(.*)\]", line)
                    if match:
                        self._drain()
                        return match[1]
                heard = DeviceError(f"{self._where} answers without its name: check that it runs MLPerf Tiny firmware")
            except _Garbled as error:
                heard = error.device_error(self._where, timeout_s)
            except _Silent as error:
                # What came before says more than that nothing came in an attempt that the deadline cut short.
                if heard is None or attempt_s == _ATTEMPT_S:
                    heard = error.device_error(self._where, timeout_s)
            if heard is not None and self._clock() >= deadline:
                raise heard

    def command(self, text: str, timeout_s: float | None = None) -> list[str]:
        """Send a command and return the lines of the reply, without its end."""
        seconds = self._timeout_s if timeout_s is None else timeout_s
        try:
            lines = self._exchange(text, seconds)
        except (_Silent, _Garbled) as error:
            raise error.device_error(self._where, seconds, text) from None
        errors = [line for line in lines if line.startswith("e-[")]
        if errors:
            raise DeviceError(f"{self._where} answers to '{_short(text)}': {errors[0][3:].removesuffix(']')}")
        return lines

    def profile(self) -> dict[str, str]:
        """Return the board's description of itself: 'profile' and 'model'."""
        matches = (re.fullmatch(r"m-(profile|model)-\[(.*)\]", line) for line in self.command("profile"))
        return {m[1]: m[2] for m in matches if m}

    def signature(self) -> Signature:
        """Return inputs and outputs; an empty signature from firmware that does not know the command."""
        try:
            lines = self.command("signature")
        except DeviceError as error:
            if "Unknown command" in str(error):
                return Signature()
            raise
        tensors: dict[str, list[DutTensor]] = defaultdict(list)
        for line in lines:
            match = re.fullmatch(r"x-(input|output)-\[(\w+),([\dx]*),([\d ]*),(.*)\]", line)
            if match:
                shape, axes = (tuple(map(int, re.findall(r"\d+", text))) for text in (match[3], match[4]))
                tensors[match[1]].append(DutTensor(match[5], match[2], shape, axes))
        runtime = next((m[1] for line in lines if (m := re.fullmatch(r"x-runtime-\[(.*)\]", line))), "")
        return Signature(tuple(tensors["input"]), tuple(tensors["output"]), runtime)

    def load(self, data: bytes) -> None:
        """Load the input."""
        lines = self.command(f"db load {len(data)}")
        for start in range(0, len(data), _BYTES_PER_COMMAND):
            lines = self.command(f"db {data[start : start + _BYTES_PER_COMMAND].hex()}")
        if "m-load-done" not in lines:
            raise DeviceError(
                f"{self._where} did not accept all of {len(data)} bytes of input: check that its firmware holds this "
                "model"
            )

    def infer(self, iterations: int, warm_up: int, timeout_s: float) -> Inference:
        """Run inferences on the input that was loaded."""
        lines = self.command(f"infer {iterations} {warm_up}", timeout_s)
        laps = [int(m[1]) for line in lines if (m := re.fullmatch(r"m-lap-us-(\d+)", line))]
        results = next((m[1] for line in lines if (m := re.fullmatch(r"m-results-\[(.*)\]", line))), None)
        if len(laps) != 2 or results is None:
            raise DeviceError(f"{self._where} ran 'infer' without two time stamps and results: the answer is garbled")
        try:
            values = tuple(float(v) for v in results.split(",") if v.strip())
        except ValueError:
            raise DeviceError(f"{self._where} sent results that are not numbers: '{_short(results)}'") from None
        # Time stamps are 32-bit numbers on most boards: they may wrap in between.
        return Inference(values, (laps[1] - laps[0]) % (1 << 32), _numbers(lines, "x-").get("ticks"))

    def memory(self) -> dict[str, int]:
        """Return bytes by 'activations', 'static', 'stack' and 'flash'; unknown ones are missing."""
        try:
            return _numbers(self.command("memory"), "x-mem-")
        except DeviceError as error:
            if "Unknown command" in str(error):
                return {}
            raise

    def operators(self) -> list[tuple[str, int]]:
        """Return operator and ticks of every node in the last infer; of firmware built with MODEL_OP_TICKS."""
        matches = (re.fullmatch(r"x-op-\[\d+,(\w+),(\d+)\]", line) for line in self.command("operators"))
        return [(m[1], int(m[2])) for m in matches if m]

    def close(self) -> None:
        """Give the connection back."""
        self._stream.close()

    def _exchange(self, text: str, seconds: float) -> list[str]:
        """Send a command, and read lines up to the one that ends the reply."""
        deadline = self._clock() + seconds
        try:
            # A deadline that is near does not make a board that takes no bytes of one that is only slow.
            self._stream.write(f"{text}%".encode(), max(seconds, _ATTEMPT_S))
            return self._read(deadline)
        except OSError as error:
            raise DeviceError(f"{self._where} is gone ({_reason(error)}): check cable and power") from None

    def _read(self, deadline: float) -> list[str]:
        lines: list[str] = []
        pending = bytearray()
        size = 0
        while True:
            left = deadline - self._clock()
            chunk = self._stream.read(left) if left > 0 else b""
            if not chunk:
                if self._clock() < deadline:
                    continue
                raise _Silent(lines, bytes(pending))
            size += len(chunk)
            if size > _REPLY_BYTES:
                raise _Garbled(bytes(pending))
            pending += chunk
            *complete, tail = pending.split(b"\n")
            pending = bytearray(tail)
            for raw in complete:
                line = raw.replace(b"\r", b"").replace(b"\0", b"")
                if any(byte < 32 or byte > 126 for byte in line):
                    raise _Garbled(bytes(line))
                if line == READY.encode():
                    return lines
                lines.append(line.decode("ascii"))

    def _drain(self) -> None:
        """Read what still comes of answers to earlier attempts, for a bounded time."""
        deadline = self._clock() + _ATTEMPT_S
        while self._clock() < deadline and self._stream.read(_QUIET_S):
            pass


class _Silent(Exception):  # noqa: N818  # turned into a DeviceError where the command is known
    """No end of a reply in time."""

    def __init__(self, lines: Sequence[str], rest: bytes) -> None:
        super().__init__()
        self._lines, self._rest = lines, rest

    def device_error(self, address: str, seconds: float, text: str = "") -> DeviceError:
        """Return the error for the user."""
        to = f" to '{_short(text)}'" if text else ""
        if not self._lines and not self._rest:
            return DeviceError(f"{address} did not answer{to} within {seconds:g} s: check that its firmware runs")
        if any(byte > 126 for byte in self._rest):
            return _Garbled(self._rest).device_error(address, seconds)
        last = (self._rest.decode("ascii", "replace") or (self._lines[-1] if self._lines else "")).strip()
        return DeviceError(
            f"{address} did not finish its answer{to} within {seconds:g} s, it stopped after '{_short(last)}': reset it"
        )


class _Garbled(Exception):  # noqa: N818
    """An answer that is not text."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = data

    def device_error(self, address: str, seconds: float, text: str = "") -> DeviceError:
        """Return the error for the user."""
        return DeviceError(
            f"{address} answers with bytes that are not text ({self._data[:16].hex(' ')}): check the baud rate"
        )


def _numbers(lines: Sequence[str], prefix: str) -> dict[str, int]:
    matches = (re.fullmatch(rf"{re.escape(prefix)}([a-z][a-z-]*)-(\d+)", line) for line in lines)
    return {m[1]: int(m[2]) for m in matches if m}


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _reason(error: OSError) -> str:
    return " ".join(str(error.strerror or error).split())[:120] or type(error).__name__
