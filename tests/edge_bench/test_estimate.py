"""Ranges of latency from instruction counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from onnxfold.budget.devices import known_devices, load_device
from onnxfold.edge_bench.job import BenchJob
from onnxfold.edge_bench.runners import qemu_runner
from onnxfold.edge_bench.runners.qemu_runner import EstimateRunner, estimate_latency
from onnxfold.errors import ExportError
from tests.edge_bench.jobs import small_job

NANO = load_device("arduino-nano-33-ble")


def test_every_operator_has_its_own_range() -> None:
    profile = replace(
        NANO, clock_hz=1_000_000, cycles_per_instruction={"Conv": (1.0, 2.0), "Gemm": (3.0, 5.0), "other": (1.5, 1.5)}
    )
    found = estimate_latency({"Conv": 1_000_000, "Gemm": 100_000, "Relu": 10_000, "MaxPool": 0}, profile)
    assert found["latency_low_s"] == pytest.approx(1.0 + 0.3 + 0.015)
    assert found["latency_high_s"] == pytest.approx(2.0 + 0.5 + 0.015)
    assert "Conv 1 M x 1-2" in found["basis"]
    assert "at 1 MHz" in found["basis"]
    assert "MaxPool" not in found["basis"]


def test_the_rest_is_summed_up_in_the_basis() -> None:
    counts = {name: 10**6 * (9 - i) for i, name in enumerate(["Conv", "Gemm", "Add", "Mul", "Relu", "Tanh"])}
    basis = estimate_latency(counts, NANO)["basis"]
    assert "other 9 M x" in basis
    assert "Relu" not in basis


def test_instructions_of_another_core_are_said_to_be() -> None:
    assert estimate_latency({"Conv": 1}, NANO)["basis"].startswith("medium confidence")
    low = estimate_latency({"Conv": 1}, load_device("esp-eye"))["basis"]
    assert low.startswith("LOW CONFIDENCE: instructions of a Cortex-M4F, not of Xtensa LX6")


WITH_RANGES = tuple(name for name in known_devices() if load_device(name).cycles_per_instruction)


@pytest.mark.parametrize("name", WITH_RANGES)
def test_known_devices_have_ranges(name: str) -> None:
    found = estimate_latency({"Conv": 4_000_000, "Gemm": 500_000, "MaxPool": 100_000}, load_device(name))
    assert 0 < found["latency_low_s"] < found["latency_high_s"] < 50 * found["latency_low_s"]


def test_instructions_are_counted_once_for_all_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def count(job: BenchJob) -> dict[str, int]:
        counted.append(job.name)
        return {"Conv": 1_000_000, "other": 10}

    monkeypatch.setattr(qemu_runner, "_count", count)
    job = small_job(tmp_path)
    rows = [row for n in WITH_RANGES for row in EstimateRunner().run(job, load_device(n))]
    assert counted == ["small"]
    assert [row.device for row in rows] == list(WITH_RANGES)
    for row in rows:
        assert row.status == "ok"
        # A range and no middle: nothing says that one value is likelier than another.
        assert row.latency_s is None
        assert row.latency_low_s is not None
        assert row.latency_high_s is not None
        assert row.latency_low_s < row.latency_high_s
        assert row.details["instructions_by_operator"] == {"Conv": 1_000_000, "other": 10}


def test_what_cannot_be_counted_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(job: BenchJob) -> dict[str, int]:
        raise ExportError("no such operator", node="n", op_type="NonZero")

    monkeypatch.setattr(qemu_runner, "count_by_op", count)
    (row,) = EstimateRunner().run(small_job(tmp_path), NANO)
    assert row.status == "failed"
    assert "NonZero 'n': no such operator" in row.reason
