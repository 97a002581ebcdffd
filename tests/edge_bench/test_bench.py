"""Which means are chosen for which device, and what becomes of their rows."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfold.budget.devices import DeviceProfile, known_devices, load_device
from onnxfold.edge_bench.bench import Plan, bench, measure, plan
from onnxfold.edge_bench.job import BenchJob, Runner
from onnxfold.edge_bench.result import BenchResult
from onnxfold.edge_bench.runners.linux import SshRunner
from onnxfold.errors import ConfigError
from tests.edge_bench.jobs import small_job, small_model

NANO, EYE, JETSON = (load_device(n) for n in ("arduino-nano-33-ble", "esp-eye", "jetson-nano"))


@dataclass
class Fake:
    """A runner that gives one row, or lacks something."""

    name: str = "fake"
    lacking: str = ""
    ram_bytes: int | None = None
    asked: list[str] = field(default_factory=list)

    def missing(self) -> str:
        return self.lacking

    def run(self, job: BenchJob, device: DeviceProfile) -> list[BenchResult]:
        self.asked.append(device.name)
        row = BenchResult(
            model=job.name, device=device.name, method="emulated-instructions", instructions=5, runtime=self.name,
            ram_bytes=self.ram_bytes,
        )  # fmt: skip
        return [row]


def rows_of(tmp_path: Path, *plans: Plan) -> list[BenchResult]:
    tmp_path.mkdir(exist_ok=True)
    return measure(small_job(tmp_path), plans)


def test_all_is_this_machine_and_every_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.edge_bench.bench.plan", lambda device, **_: Plan(device))
    onnx.save(small_model(), tmp_path / "net.onnx")
    seen: list[tuple[str, int, int]] = []
    found = bench(
        [tmp_path / "net.onnx"],
        repeats=2,
        progress=lambda text, done, total: seen.append((text, done, total)),
    )
    assert list(dict.fromkeys(row.device for row in found)) == ["host", *known_devices()]
    assert seen[0] == ("net on host", 0, 1 + len(known_devices()))
    assert [done for _, done, _ in seen] == list(range(1 + len(known_devices())))
    for row in found:
        if row.device != "host":
            assert row.status == "unavailable"
            assert row.reason.startswith("no board: plug it in and give ")
            assert row.flash_bytes is not None


def test_every_stand_in_that_can_gives_its_row(tmp_path: Path) -> None:
    emulator, estimate = Fake("emulator", ram_bytes=7), Fake("estimate")
    other = Fake("other", lacking="no key")
    found = rows_of(tmp_path, Plan(NANO, None, (emulator, estimate, other)))
    assert [row.runtime for row in found] == ["emulator", "estimate"]
    # Memory that a runner measured stays; else it is what the model takes in TensorFlow Lite Micro.
    assert (found[0].ram_bytes, found[0].flash_bytes) == (7, None)
    assert found[1].ram_bytes is not None
    assert found[1].flash_bytes is not None


def test_what_is_missing_is_said_once_and_in_one_row(tmp_path: Path) -> None:
    lacking = Fake(lacking="no compiler: apt install gcc-arm-none-eabi")
    (row,) = rows_of(tmp_path, Plan(NANO, None, (lacking, lacking, Fake(lacking="no key"))))
    assert row.status == "unavailable"
    assert row.reason == (
        "no board: plug it in and give --port, e.g. /dev/ttyACM0; or no compiler: apt install gcc-arm-none-eabi; "
        "or no key"
    )
    assert lacking.asked == []


def test_what_does_not_fit_is_a_row_and_is_not_run(tmp_path: Path) -> None:
    small = replace(NANO, flash_bytes=180_000)
    runner = Fake()
    (row,) = rows_of(tmp_path, Plan(small, None, (runner,)))
    assert row.status == "does-not-fit"
    assert row.reason.startswith("does not fit: needs ")
    assert row.flash_bytes is not None
    assert runner.asked == []


def test_a_board_that_is_there_is_the_only_one_asked(tmp_path: Path) -> None:
    board, other = Fake("board"), Fake()
    (row,) = rows_of(tmp_path, Plan(NANO, board, (other,)))
    assert row.runtime == "board"
    assert other.asked == []
    (row,) = rows_of(tmp_path / "2", Plan(NANO, Fake(lacking="pyserial is not installed"), (other,)))
    assert (row.status, row.method) == ("unavailable", "measured-device")
    assert row.reason == "pyserial is not installed"


def test_the_means_for_each_device() -> None:
    def names(runners: Sequence[Runner]) -> list[str]:
        return [type(r).__name__ for r in runners]

    reach: dict[str, Any] = {"port": "/dev/ttyACM0", "host": "me@jetson"}
    assert plan(None, **reach) == Plan(None)
    assert isinstance(plan(JETSON, **reach).board, SshRunner)
    assert type(plan(NANO, **reach).board).__name__ == "SerialRunner"
    assert names(plan(NANO).stand_ins) == ["QemuRunner", "EstimateRunner"]
    assert names(plan(EYE).stand_ins) == ["EstimateRunner"]
    assert names(plan(replace(EYE, cycles_per_instruction={})).stand_ins) == []


def test_a_port_is_one_board() -> None:
    with pytest.raises(
        ConfigError, match="--port reaches one board, and could mean arduino-nano-33-ble, esp-eye, esp32-s3, rp2040"
    ):
        bench([], port="/dev/ttyACM0")
    with pytest.raises(ConfigError, match="--host is for a board with Linux, and none is among the devices"):
        bench([], ["host", "esp-eye"], host="me@jetson")
    with pytest.raises(ConfigError, match="device 'uno' is not one of"):
        bench([], ["uno"])
    with pytest.raises(ConfigError, match="no device: give 'host', 'all', or one of"):
        bench([], [])


def test_files_of_the_same_name_keep_their_folders(tmp_path: Path) -> None:
    paths = [tmp_path / name / "net.onnx" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        onnx.save(small_model(), path)
    found = bench(paths, ["host"], repeats=1, warm_up=0)
    assert {row.model for row in found} == {str(p) for p in paths}
