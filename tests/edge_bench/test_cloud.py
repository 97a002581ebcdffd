"""Edge Impulse's estimates: a package of the same form stands in for the service."""

from pathlib import Path

import pytest

from onnxfold.budget.devices import load_device
from onnxfold.edge_bench.runners.cloud_runner import CloudRunner
from tests.edge_bench.jobs import small_job

NANO = load_device("arduino-nano-33-ble")

# What the package's documented response has: model.profile_info.float32 with time and memory.
FAKE = """
import pathlib, types
from types import SimpleNamespace as Some

calls = []

def list_profile_devices():
    return ["arduino-nano-33-ble", "espressif-esp32"]

def profile(model, device=None, api_key=None, timeout_sec=None):
    calls.append((model, device, api_key, timeout_sec))
    assert pathlib.Path(model).read_bytes()[4:8] == b"TFL3"
    {body}

model = types.SimpleNamespace(list_profile_devices=list_profile_devices, profile=profile)
"""
ANSWER = """memory = Some(tflite=Some(ram=3000, rom=50000, arena_size=2500))
    found = Some(time_per_inference_ms=12, memory=memory, mcu_support_error=None, profiling_error=None)
    return Some(model=Some(profile_info=Some(float32=found)))"""
NO_ANSWER = """found = Some(time_per_inference_ms=None, memory=None, mcu_support_error="too big", profiling_error=None)
    return Some(model=Some(profile_info=Some(float32=found)))"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the package; its `profile` is what is written into it."""
    folder = tmp_path / "site" / "edgeimpulse"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(__import__("sys").modules, "edgeimpulse", raising=False)
    monkeypatch.setenv("EI_API_KEY", "ei_secret")
    return folder / "__init__.py"


def test_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EI_API_KEY", raising=False)
    assert CloudRunner().missing() == "no key of Edge Impulse: set EI_API_KEY"


def test_an_estimate(package: Path, tmp_path: Path) -> None:
    package.write_text(FAKE.format(body=ANSWER))
    assert CloudRunner().missing() == ""
    (row,) = CloudRunner(timeout_s=7).run(small_job(tmp_path), NANO)
    assert (row.status, row.method, row.device) == ("ok", "cloud-estimate", "arduino-nano-33-ble")
    assert (row.latency_s, row.ram_bytes, row.flash_bytes) == (0.012, 3000, 50000)
    assert row.details["arena_bytes"] == 2500
    import edgeimpulse  # type: ignore[import-not-found]

    assert edgeimpulse.calls[0][1:] == ("arduino-nano-33-ble", "ei_secret", 7)


def test_no_estimate_says_why(package: Path, tmp_path: Path) -> None:
    package.write_text(FAKE.format(body=NO_ANSWER))
    (row,) = CloudRunner().run(small_job(tmp_path), NANO)
    assert row.status == "failed"
    assert "too big" in row.reason


def test_failures_are_rows_without_the_key(package: Path, tmp_path: Path) -> None:
    package.write_text(FAKE.format(body='raise RuntimeError(f"key {api_key}\\nis not allowed")'))
    (row,) = CloudRunner().run(small_job(tmp_path), NANO)
    assert (row.status, row.reason) == ("failed", "Edge Impulse: key *** is not allowed")


def test_devices_that_the_service_does_not_have(package: Path, tmp_path: Path) -> None:
    package.write_text(FAKE.format(body=ANSWER))
    (row,) = CloudRunner().run(small_job(tmp_path), load_device("jetson-nano"))
    assert row.status == "unavailable"
    assert "'jetson-nano' is not in Edge Impulse's list" in row.reason
