"""Boards on a serial port, through pyserial: the emulated firmware on a pseudo-terminal, and boards that misbehave."""

import re
import struct
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onnxfold.budget.devices import load_device
from onnxfold.edge_bench.boards import qemu
from onnxfold.edge_bench.boards.dut import Dut, answers
from onnxfold.edge_bench.boards.qemu import FileStream, build, command, project_of
from onnxfold.edge_bench.job import BenchJob, relative_error
from onnxfold.edge_bench.runners.serial_runner import SerialRunner
from onnxfold.export.firmware.interface import memory_ld
from onnxfold.export.firmware.need import FLASH_BYTES, RAM_BYTES
from tests.firmware.fake_board import Answers, board
from tests.firmware.jobs import job_of, small_model

pytest.importorskip("serial", reason="pip install 'onnxfold[boards]'")

NANO = load_device("arduino-nano-33-ble")
READY = b"m-ready\r\n"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> BenchJob:
    return job_of(small_model(), tmp_path_factory.mktemp("job"), samples=3)


class GoodBoard:
    """A board that gives the references of a job, one input after the other."""

    def __init__(self, job: BenchJob, *, off_by: float = 0.0, shape: str = "1x2x8x8", memory: bool = True) -> None:
        self._job, self._off_by, self._shape, self._memory = job, off_by, shape, memory
        self._wanted = {
            np.asarray(f["x"], "<f4").tobytes(): r[0] for f, r in zip(job.inputs, job.reference, strict=True)
        }
        self._loaded, self._expected = b"", 0

    def __call__(self, text: str) -> bytes | None:
        return "".join(f"{line}\r\n" for line in (*self._lines(text), "m-ready")).encode()

    def _lines(self, text: str) -> list[str]:
        match text.split():
            case ["name"]:
                return ["m-name-dut-[good]"]
            case ["profile"]:
                return ["m-profile-[ULPMark]", "m-model-[small]"]
            case ["signature"]:
                return [
                    f"x-input-[float32,{self._shape},0 1 2 3,x]",
                    "x-output-[float32,1x5,0 1,y]",
                    "x-runtime-[test]",
                ]
            case ["db", "load", size]:
                self._loaded, self._expected = b"", int(size)
                return []
            case ["db", digits]:
                self._loaded += bytes.fromhex(digits)
                return ["m-load-done"] if len(self._loaded) == self._expected else []
            case ["infer", count, _]:
                values = self._wanted[self._loaded].reshape(-1) + self._off_by
                results = ",".join(f"{v:.9g}" for v in values)
                return ["m-lap-us-100", f"m-lap-us-{100 + 2000 * int(count)}", f"m-results-[{results}]"]
            case ["memory"] if self._memory:
                return ["x-mem-activations-10", "x-mem-static-1000", "x-mem-stack-200", "x-mem-flash-5000"]
        return [f"e-[Unknown command: {text}]"]


def run(answers: Answers, job: BenchJob, **options: float) -> tuple[str, str, float]:
    """Return status and reason of the row, and the seconds it took; a busy machine has time to answer."""
    start = time.monotonic()
    with board(answers) as fake:
        (row,) = SerialRunner(fake.port, **{"timeout_s": PATIENCE_S, "connect_s": PATIENCE_S, **options}).run(job, NANO)
    assert "\n" not in row.reason
    return row.status, row.reason, time.monotonic() - start


def test_a_board_is_measured_by_its_own_clock(job: BenchJob) -> None:
    with board(GoodBoard(job)) as fake:
        (row,) = SerialRunner(fake.port, connect_s=PATIENCE_S).run(job, NANO)
    assert (row.status, row.method, row.reason) == ("ok", "measured-device", "")
    assert (row.latency_s, row.latency_low_s, row.latency_high_s) == (0.002, 0.002, 0.002)
    assert (row.ram_bytes, row.flash_bytes) == (1200, 5000)
    assert (row.runtime, row.clock_hz, row.repeats, row.compared_inputs) == ("test", 64_000_000, 5, 3)
    assert row.details["board"] == "good"
    assert row.max_relative_error is not None
    assert row.max_relative_error < 1e-6


def test_memory_that_is_not_stated_is_left_open(job: BenchJob) -> None:
    with board(GoodBoard(job, memory=False)) as fake:
        (row,) = SerialRunner(fake.port, connect_s=PATIENCE_S).run(job, NANO)
    assert (row.status, row.ram_bytes, row.flash_bytes) == ("ok", None, None)


def test_wrong_outputs_and_other_models(job: BenchJob) -> None:
    status, reason, _ = run(GoodBoard(job, off_by=0.01), job)
    assert status == "failed"
    assert "outputs differ from onnxruntime's" in reason
    status, reason, _ = run(GoodBoard(job, shape="1x3x8x8"), job)
    assert status == "failed"
    assert "the firmware holds another model" in reason


def otherwise(good: GoodBoard, word: str, said: bytes | None) -> Answers:
    """A board that answers well, but otherwise to one command."""
    return lambda text: said if text.split(" ")[0] == word else good(text)


@pytest.mark.parametrize(
    ("word", "said", "limits", "message"),
    [
        ("infer", None, {}, "is gone"),
        ("db", None, {}, "is gone"),
        ("infer", b"", {"timeout_s": 0.5}, "did not answer to 'infer 1 0' within 0.5 s"),
        ("infer", b"m-warmup-start-0\r\n", {"timeout_s": 1.5}, "stopped after 'm-warmup-start-0'"),
        ("infer", b"\xff\xfe\x80\x81\r\n", {}, "check the baud rate"),
        ("infer", b"e-[Inference failed: Invoke() failed]\r\n" + READY, {}, "Inference failed: Invoke() failed"),
        ("infer", READY, {}, "garbled"),
        ("name", b"", {"connect_s": 0.5}, "did not answer within 0.5 s"),
        ("name", b"\xff\xfe\x80\x81\r\n", {"connect_s": 1.5}, "check the baud rate"),
    ],
)
def test_boards_that_misbehave(
    word: str, said: bytes | None, limits: dict[str, float], message: str, job: BenchJob
) -> None:
    status, reason, seconds = run(otherwise(GoodBoard(job), word, said), job, **limits)
    assert status == "failed"
    assert message in reason
    assert seconds < PATIENCE_S


def test_int8_firmware_is_not_compared_in_floats(job: BenchJob) -> None:
    signature = b"x-input-[int8,1x2x8x8,0 1 2 3,x]\r\nx-output-[int8,1x5,0 1,y]\r\n" + READY
    status, reason, _ = run(otherwise(GoodBoard(job), "signature", signature), job)
    assert status == "failed"
    assert "the firmware takes 'x' as int8, and outputs are compared in float32: export the project without" in reason


def test_no_board_at_the_port(job: BenchJob) -> None:
    (row,) = SerialRunner("/dev/no-such-port").run(job, NANO)
    assert row.status == "unavailable"
    assert re.match(r"port '/dev/no-such-port' cannot be opened \(.*\); serial ports here: ", row.reason)
    assert "\n" not in row.reason


@pytest.mark.skipif(bool(qemu.missing_tools()), reason=qemu.missing_tools())
def test_emulated_firmware_on_a_pseudo_terminal(job: BenchJob, tmp_path: Path) -> None:
    project = project_of(job, tmp_path / "firmware", memory_ld(FLASH_BYTES, RAM_BYTES))
    firmware = build(project)
    process = subprocess.Popen(
        command(firmware.elf, "pty"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        port = re.search(r"/dev/pts/\d+", process.stdout.readline())
        assert port is not None
        (row,) = SerialRunner(port[0]).run(job, NANO)
        assert (row.status, row.reason) == ("ok", "")
        assert row.max_relative_error is not None
        assert row.max_relative_error <= 1e-5
        assert row.flash_bytes == firmware.flash_bytes
        assert row.details["model"] == "small"
        assert row.runtime.startswith("emx-onnx-cgen")
        process.kill()
        process.wait()
        (row,) = SerialRunner(port[0], connect_s=1.0).run(replace(job, repeats=1), NANO)
        assert row.status in ("failed", "unavailable")  # unplugged
    finally:
        process.kill()
        process.wait()


def test_large_inputs_are_not_all_sent(job: BenchJob) -> None:
    """The clock goes on by a minute whenever it is asked: at first, and before every input but the first three."""
    many = replace(job, inputs=[*job.inputs] * 4, reference=[*job.reference] * 4)
    seconds = iter(range(0, 10_000, 60))
    with board(GoodBoard(job)) as fake:
        dut = Dut(FileStream(fake.open()), "the board")
        outputs, _ = answers(dut, many, dut.signature(), PATIENCE_S, budget_s=100, clock=lambda: float(next(seconds)))
        dut.close()
    assert len(outputs) == 4
    assert relative_error(many.reference[:4], outputs) < 1e-6


def test_bytes_are_little_endian(job: BenchJob) -> None:
    seen: list[str] = []

    def said(text: str) -> bytes | None:
        seen.append(text)
        return GoodBoard(job)(text) if not text.startswith("db") else READY

    run(said, job)
    first = next(text for text in seen if text.startswith("db ") and "load" not in text)
    assert struct.unpack("<f", bytes.fromhex(first[3:11]))[0] == np.float32(job.inputs[0]["x"].reshape(-1)[0])
