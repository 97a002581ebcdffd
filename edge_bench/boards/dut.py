"""The host's side of MLPerf Tiny's protocol for a device under test, over any stream of bytes, and a job on one.

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
from math import prod
from typing import Protocol

import numpy as np

from onnxfold.edge_bench.job import BenchJob
from onnxfold.errors import OnnxFoldError
from onnxfold.export.firmware.interface import Interface, Tensor
from onnxfold.graph.tensors import Array

READY = "m-ready"
#: Bytes of input per command: MLPerf Tiny's runner sends as many, commands have room for 80 characters.
_BYTES_PER_COMMAND = 31
#: Longest reply: results of a million values. A board that sends more does not speak the protocol.
_REPLY_BYTES = 1 << 24
#: How long nothing must come for a line to be called silent.
_QUIET_S = 0.1
#: The time for one attempt to get an answer from a board that may still be starting.
_ATTEMPT_S = 1.0
#: Outputs of a device may differ from onnxruntime's by this much of the largest one: the order of float32 sums.
TOLERANCE = 1e-5
#: Inputs that are always sent, however long that takes.
_FEWEST = 3


class DeviceError(OnnxFoldError):
    """A board cannot be reached, or does not answer as it should."""


class _SilentError(DeviceError):
    """No end of a reply in time."""


class _GarbledError(DeviceError):
    """An answer that is not text."""


class ByteStream(Protocol):
    """A connection to a board; raises OSError when it is gone."""

    def read(self, timeout_s: float) -> bytes:
        """Return the bytes that have come, waiting at most that long for the first; b'' if none came."""

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send all of it, or raise OSError when the time is over."""

    def close(self) -> None:
        """Give the connection back."""


@dataclass(frozen=True)
class Signature(Interface):
    """Description of the model in the firmware; empty if the firmware is not onnxfold's."""

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
        self, stream: ByteStream, name: str, *, timeout_s: float = 5.0, clock: Callable[[], float] = time.monotonic
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
                names = _matches(r"m-name-dut-\[(.*)\]", self._exchange("name", attempt_s, f"within {timeout_s:g} s"))
                if names:
                    self._drain()
                    return names[0][1]
                heard = DeviceError(f"{self._where} answers without its name: check that it runs MLPerf Tiny firmware")
            except (_GarbledError, _SilentError) as error:
                # What came before says more than that nothing came in an attempt that the deadline cut short.
                if heard is None or attempt_s == _ATTEMPT_S or isinstance(error, _GarbledError):
                    heard = error
            if self._clock() >= deadline:
                raise heard

    def command(self, text: str, timeout_s: float | None = None) -> list[str]:
        """Send a command and return the lines of the reply, without its end."""
        seconds = self._timeout_s if timeout_s is None else timeout_s
        lines = self._exchange(text, seconds, f"to '{_short(text)}' within {seconds:g} s")
        errors = [line for line in lines if line.startswith("e-[")]
        if errors:
            raise DeviceError(f"{self._where} answers to '{_short(text)}': {errors[0][3:].removesuffix(']')}")
        return lines

    def _addition(self, text: str) -> list[str]:
        """Return the reply to a command of onnxfold's firmware; none from firmware that does not know it."""
        try:
            return self.command(text)
        except DeviceError as error:
            if "Unknown command" in str(error):
                return []
            raise

    def profile(self) -> dict[str, str]:
        """Return the board's description of itself: 'profile' and 'model'."""
        return {m[1]: m[2] for m in _matches(r"m-(profile|model)-\[(.*)\]", self.command("profile"))}

    def signature(self) -> Signature:
        """Return inputs and outputs; an empty signature from firmware that does not know the command."""
        lines = self._addition("signature")
        tensors: dict[str, list[Tensor]] = defaultdict(list)
        for m in _matches(r"x-(input|output)-\[(\w+),([\dx]*),([\d ]*),(.*)\]", lines):
            shape, axes = (tuple(map(int, re.findall(r"\d+", text))) for text in (m[3], m[4]))
            tensors[m[1]].append(Tensor(m[5], m[2], shape, axes))
        runtimes = [m[1] for m in _matches(r"x-runtime-\[(.*)\]", lines)]
        return Signature(tuple(tensors["input"]), tuple(tensors["output"]), *runtimes[:1])

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
        laps = [int(m[1]) for m in _matches(r"m-lap-us-(\d+)", lines)]
        results = [m[1] for m in _matches(r"m-results-\[(.*)\]", lines)]
        if len(laps) != 2 or not results:
            raise DeviceError(f"{self._where} ran 'infer' without two time stamps and results: the answer is garbled")
        try:
            values = tuple(float(v) for v in results[0].split(",") if v.strip())
        except ValueError:
            raise DeviceError(f"{self._where} sent results that are not numbers: '{_short(results[0])}'") from None
        # Time stamps are 32-bit numbers on most boards: they may wrap in between.
        return Inference(values, (laps[1] - laps[0]) % (1 << 32), _numbers(lines, "x-").get("ticks"))

    def memory(self) -> dict[str, int]:
        """Return bytes by 'activations', 'static', 'stack' and 'flash'; unknown ones are missing."""
        return _numbers(self._addition("memory"), "x-mem-")

    def operators(self) -> list[tuple[str, int]]:
        """Return operator and ticks of every node in the last infer; of firmware built with MODEL_OP_TICKS."""
        return [(m[1], int(m[2])) for m in _matches(r"x-op-\[\d+,(\w+),(\d+)\]", self.command("operators"))]

    def close(self) -> None:
        """Give the connection back."""
        self._stream.close()

    def _exchange(self, text: str, seconds: float, limit: str) -> list[str]:
        """Send a command, and read lines up to the one that ends the reply; `limit` is for the error, in words."""
        deadline = self._clock() + seconds
        try:
            # A deadline that is near does not make a board that takes no bytes of one that is only slow.
            self._stream.write(f"{text}%".encode(), max(seconds, _ATTEMPT_S))
            return self._read(deadline, limit)
        except OSError as error:
            reason = " ".join(str(error.strerror or error).split())[:120] or type(error).__name__
            raise DeviceError(f"{self._where} is gone ({reason}): check cable and power") from None

    def _read(self, deadline: float, limit: str) -> list[str]:
        lines: list[str] = []
        pending, size = b"", 0
        while True:
            left = deadline - self._clock()
            chunk = self._stream.read(left) if left > 0 else b""
            if not chunk:
                if self._clock() < deadline:
                    continue
                raise self._silence(lines, pending, limit)
            size += len(chunk)
            if size > _REPLY_BYTES:
                raise self._garble(pending)
            *complete, pending = (pending + chunk).split(b"\n")
            for raw in complete:
                line = raw.replace(b"\r", b"").replace(b"\0", b"")
                if any(byte < 32 or byte > 126 for byte in line):
                    raise self._garble(line)
                if line == READY.encode():
                    return lines
                lines.append(line.decode("ascii"))

    def _silence(self, lines: Sequence[str], rest: bytes, limit: str) -> DeviceError:
        if not lines and not rest:
            return _SilentError(f"{self._where} did not answer {limit}: check that its firmware runs")
        if any(byte > 126 for byte in rest):
            return self._garble(rest)
        last = (rest.decode("ascii", "replace") or lines[-1]).strip()
        return _SilentError(
            f"{self._where} did not finish its answer {limit}, it stopped after '{_short(last)}': reset it"
        )

    def _garble(self, data: bytes) -> DeviceError:
        said = data[:16].hex(" ")
        return _GarbledError(f"{self._where} answers with bytes that are not text ({said}): check the baud rate")

    def _drain(self) -> None:
        """Read what still comes of answers to earlier attempts, for a bounded time."""
        deadline = self._clock() + _ATTEMPT_S
        while self._clock() < deadline and self._stream.read(_QUIET_S):
            pass


def _matches(pattern: str, lines: Sequence[str]) -> list[re.Match[str]]:
    return [m for line in lines if (m := re.fullmatch(pattern, line))]


def _numbers(lines: Sequence[str], prefix: str) -> dict[str, int]:
    return {m[1]: int(m[2]) for m in _matches(rf"{prefix}([a-z][a-z-]*)-(\d+)", lines)}


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def answers(
    dut: Dut, job: BenchJob, signature: Signature, timeout_s: float, *, budget_s: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[list[Array]], list[Inference]]:  # fmt: skip
    """Run the first inputs of a job once each, until the time is up: large inputs take long on a serial line.

    Return the outputs, in the order of inputs and of the model's outputs, and the inferences with their times.
    """
    outputs: list[list[Array]] = []
    inferences: list[Inference] = []
    deadline = clock() + budget_s
    for feeds, reference in zip(job.inputs, job.reference, strict=True):
        if len(outputs) >= _FEWEST and clock() > deadline:
            break
        load_input(dut, list(feeds.values()), signature)
        inferences.append(dut.infer(1, 0, timeout_s))
        outputs.append(_split(inferences[-1].results, reference, signature.outputs))
    return outputs, inferences


def load_input(dut: Dut, values: Sequence[Array], signature: Signature) -> None:
    """Load the inputs of one inference, in the order of the model."""
    tensors = signature.inputs or tuple(_plain(v) for v in values)
    if len(tensors) != len(values):
        raise DeviceError(_other_model(f"{len(tensors)} inputs", f"{len(values)}"))
    dut.load(b"".join(_bytes(v, t) for v, t in zip(values, tensors, strict=True)))


def _bytes(values: Array, tensor: Tensor) -> bytes:
    placed = values.transpose(tensor.axes) if len(tensor.axes) == values.ndim else values
    if placed.shape != tensor.shape:
        raise DeviceError(_other_model(f"input '{tensor.name}' of shape {tensor.shape}", f"{placed.shape}"))
    if placed.dtype.kind == "f" and tensor.dtype.kind != "f":
        raise DeviceError(
            f"the firmware takes '{tensor.name}' as {tensor.element_type}, and outputs are compared in float32: export "
            "the project without --dtype"
        )
    return np.ascontiguousarray(placed, dtype=tensor.dtype.newbyteorder("<")).tobytes()


def _split(results: Sequence[float], reference: Sequence[Array], tensors: Sequence[Tensor]) -> list[Array]:
    tensors = tensors or tuple(_plain(np.asarray(r)) for r in reference)
    expected = sum(np.asarray(r).size for r in reference)
    if len(results) != expected or len(tensors) != len(reference):
        raise DeviceError(_other_model(f"{len(results)} output values", f"{expected}"))
    parts = np.split(np.asarray(results, np.float64), np.cumsum([prod(t.shape) for t in tensors])[:-1])
    placed = [(part.reshape(tensor.shape), tensor.axes) for part, tensor in zip(parts, tensors, strict=True)]
    return [values.transpose(np.argsort(axes)) if axes else values for values, axes in placed]


def _plain(values: Array) -> Tensor:
    return Tensor("", str(values.dtype), values.shape, tuple(range(values.ndim)))


def _other_model(has: str, wanted: str) -> str:
    return f"the firmware holds another model: it has {has}, the model here {wanted}; upload the firmware of this one"
