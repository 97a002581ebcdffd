"""The host's side of the protocol against boards that misbehave: one line, within a bounded time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from onnxfold.edge_bench.boards.dut import DeviceError, Dut, Signature
from onnxfold.edge_bench.boards.qemu import FileStream
from tests.firmware.fake_board import Answers, board, scripted

READY = b"m-ready\r\n"
PATIENCE_S = 60.0


@contextmanager
def dut(answers: Answers) -> Iterator[Dut]:
    """A device that has time to answer: the machine may be busy. Tests of silent boards give a limit of their own."""
    with board(answers) as fake:
        found = Dut(FileStream(fake.open()), "the board", timeout_s=PATIENCE_S)
        try:
            yield found
        finally:
            found.close()


def infer_answer(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (*lines, "m-ready")).encode()


def test_name_and_profile() -> None:
    answers = scripted({"profile": b"m-profile-[ULPMark]\r\nm-model-[ic01]\r\n" + READY})
    with dut(answers) as found:
        assert found.connect(PATIENCE_S) == "fake"
        assert found.profile() == {"profile": "ULPMark", "model": "ic01"}


def test_firmware_without_additions() -> None:
    """MLPerf Tiny's own firmware knows neither signature nor memory."""
    answers = scripted({}, default=b"e-[Unknown command: signature]\r\n" + READY)
    with dut(answers) as found:
        assert found.signature() == Signature()
        assert found.memory() == {}


def test_input_goes_in_commands_of_at_most_80_characters() -> None:
    seen: list[str] = []

    def answers(command: str) -> bytes:
        seen.append(command)
        loaded = "".join(c[3:] for c in seen if c.startswith("db ") and not c.startswith("db load"))
        return (b"m-load-done\r\n" if loaded == bytes(range(100)).hex() else b"") + READY

    with dut(answers) as found:
        found.load(bytes(range(100)))
    assert seen[0] == "db load 100"
    assert max(map(len, seen)) < 80


def test_results() -> None:
    said = infer_answer(
        "m-infer-start-2", "m-lap-us-4294967290", "m-lap-us-4", "x-ticks-7", "m-results-[1.5,nan,-3e-2]"
    )
    with dut(scripted({"infer": said})) as found:
        inference = found.infer(2, 0, 1)
    assert inference.microseconds == 10  # the 32-bit clock wrapped in between
    assert inference.ticks == 7
    assert inference.results[::2] == (1.5, -0.03)


def test_error_replies() -> None:
    with dut(scripted({"infer": b"e-[Inference iterations must be >0]\r\n" + READY})) as found:
        with pytest.raises(DeviceError, match="the board answers to 'infer 0 0': Inference iterations must be >0"):
            found.infer(0, 0, 1)
        assert found.connect(PATIENCE_S) == "fake"  # the error does not stick


@pytest.mark.parametrize(
    ("said", "limit_s", "message"),
    [
        (b"", 0.3, "did not answer to 'infer 1 0' within 0.3 s"),
        (b"m-infer-sta", 1.5, "did not finish its answer to 'infer 1 0' within 1.5 s, it stopped after 'm-infer-sta'"),
        (b"m-warmup-done\r\n", 1.5, "stopped after 'm-warmup-done'"),
        (b"\xf0\x80\xfe\x01" * 5, 1.5, "not text .*: check the baud rate"),
        (b"\xf0\x80\xfe\x01\n" * 5, PATIENCE_S, "not text .*: check the baud rate"),
        (infer_answer("m-lap-us-1", "m-results-[1]"), PATIENCE_S, "the answer is garbled"),
        (
            infer_answer("m-lap-us-1", "m-lap-us-2", "m-results-[1,oops]"),
            PATIENCE_S,
            "results that are not numbers: '1,oops'",
        ),
    ],
)
def test_stuck_and_garbled_boards(said: bytes, limit_s: float, message: str) -> None:
    start = time.monotonic()
    with dut(scripted({"infer": said})) as found, pytest.raises(DeviceError, match=message) as caught:
        found.infer(1, 0, limit_s)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < PATIENCE_S


class Played:
    """A stream and its clock: what comes at which second."""

    def __init__(self, says: Callable[[float], bytes], step_s: float = 0.01) -> None:
        self._says, self._step_s, self.now = says, step_s, 0.0

    def read(self, timeout_s: float) -> bytes:
        said = self._says(self.now)
        self.now += self._step_s if said else timeout_s
        return said

    def write(self, data: bytes, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass

    def dut(self) -> Dut:
        return Dut(self, "the board", clock=lambda: self.now)


def test_a_board_that_never_stops_talking_is_stopped_by_the_deadline() -> None:
    with pytest.raises(DeviceError, match=r"did not finish its answer to 'help' within 0.2 s"):
        Played(lambda _: b"m-something\r\n").dut().command("help", 0.2)


@pytest.mark.parametrize(
    ("said", "until_s", "message"),
    [
        (b"\xf0\x80\r\n", 1.9, "check the baud rate"),
        (b"hello\r\n" + READY, 1.9, "without its name"),
        (b"\xf0\x80\r\n", 0.5, "did not answer"),  # a boot loader, and then a whole attempt of nothing
        (b"", 1.9, "did not answer"),
    ],
)
def test_what_was_heard_last_is_said(said: bytes, until_s: float, message: str) -> None:
    """The last attempt to connect, which the deadline cuts short, makes nobody forget what came before."""
    with pytest.raises(DeviceError, match=message):
        Played(lambda now: said if now < until_s else b"").dut().connect(2.0)


def test_unplugged_before_and_during_an_inference() -> None:
    with dut(scripted({"infer": None})) as found:
        found.connect(PATIENCE_S)
        with pytest.raises(DeviceError, match=r"the board is gone .*: check cable and power"):
            found.infer(1, 0, PATIENCE_S)
        with pytest.raises(DeviceError, match="the board is gone"):
            found.command("name")


def test_silent_board_at_first() -> None:
    with dut(lambda _: b"") as found, pytest.raises(DeviceError, match=r"did not answer within 0.3 s"):
        found.connect(0.3)


def test_other_firmware_at_first() -> None:
    with dut(lambda _: b"hello\r\n" + READY) as found, pytest.raises(DeviceError, match="without its name"):
        found.connect(1.5)


def test_boot_loader_text_and_half_commands_are_passed_over() -> None:
    count = 0

    def answers(command: str) -> bytes:
        nonlocal count
        count += 1
        if count == 1:  # the board restarts when the port is opened: its boot loader speaks at another baud rate
            return b"\xe0\xffrst:0x1 (POWERON_RESET)\r\nboot\r\nm-init-done\r\nm-ready\r\n"
        return b"m-name-dut-[esp-eye]\r\n" + READY

    with dut(answers) as found:
        assert found.connect(PATIENCE_S) == "esp-eye"
        assert found.command("timestamp") == ["m-name-dut-[esp-eye]"]


def test_input_that_is_too_long_for_the_board() -> None:
    with dut(scripted({})) as found, pytest.raises(DeviceError, match="did not accept all of 4 bytes"):
        found.load(bytes(4))
