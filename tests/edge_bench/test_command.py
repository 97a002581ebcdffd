"""``onnxfold bench`` as users call it."""

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result

from onnxfold.budget.devices import known_devices, load_device
from onnxfold.cli import cli
from onnxfold.errors import ConfigError, ModelNotFoundError
from tests.edge_bench.jobs import small_model


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, arguments)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(small_model(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_files_and_table(model: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"out.{suffix}" for suffix in ("json", "html")]
    options = [o for f in files for o in (f"--{f.suffix[1:]}", f)]
    done = run(model, "--device", "host", "--repeats", 3, "--threads", 2, *options)
    assert done.exit_code == 0, done.output
    assert "measured-device" in done.output
    results = json.loads(files[0].read_text())["results"]
    assert {r["threads"] for r in results} == {2}
    assert {r["repeats"] for r in results} == {3}
    assert all(r["method"] == "measured-device" and r["latency_s"] > 0 for r in results)
    assert files[1].read_text().startswith("<!DOCTYPE html>")


def test_nothing_measured_is_an_error(model: Path) -> None:
    done = run(model, "--device", "jetson-nano", "--host", "nobody@127.0.0.1:1")
    assert done.exit_code == 1
    assert "unavailable" in done.output
    assert "nothing could be measured" in done.output


def test_errors_come_before_measurements(model: Path, tmp_path: Path) -> None:
    assert isinstance(run(model, "--device", "uno").exception, ConfigError)
    assert isinstance(run(tmp_path / "none.onnx", "--device", "host").exception, ModelNotFoundError)
    assert run().exit_code == 2


def test_without_any_tool_this_machine_is_measured(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without compilers, emulators and boards, every other device says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run(model, "--repeats", 3, "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert "ok" in {r["status"] for r in rows if r["device"] == "host"}
    others = [r for r in rows if r["device"] != "host"]
    assert [r["device"] for r in others] == list(known_devices())
    for row in others:
        device = load_device(row["device"])
        assert row["status"] == "unavailable"
        assert ("apt install gcc-arm-none-eabi" in row["reason"]) == bool(device.cycles_per_instruction)
        assert ("--host user@board" if device.kind == "linux" else "--port") in row["reason"]
