"""Firmware in the emulated Cortex-M4F; skipped where the tools are not installed, which CI does."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import onnxfold
from onnxfold.budget.devices import load_device
from onnxfold.commands.run_demo import bundled_test_images
from onnxfold.edge_bench.boards import qemu
from onnxfold.edge_bench.boards.dut import DeviceError, Dut
from onnxfold.edge_bench.boards.qemu import DoesNotFitError, Firmware, build, command, emulate_firmware
from onnxfold.edge_bench.job import BenchJob, prepare_job
from onnxfold.edge_bench.result import BenchResult
from onnxfold.edge_bench.runners.qemu_runner import QemuRunner, count_by_op
from onnxfold.export.firmware.interface import memory_ld
from onnxfold.export.firmware.project import FirmwareReport, write_project
from onnxfold.graph.files.load import load
from tests.firmware.jobs import job_of, small_model

NANO = load_device("arduino-nano-33-ble")
pytestmark = pytest.mark.skipif(bool(qemu.missing_tools()), reason=qemu.missing_tools())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> BenchJob:
    return job_of(small_model(), tmp_path_factory.mktemp("job"), samples=20)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, job: BenchJob) -> FirmwareReport:
    return write_project(job.onnx, tmp_path_factory.mktemp("project") / "firmware", "qemu", name=job.name)


@pytest.fixture
def project(report: FirmwareReport, tmp_path: Path) -> Path:
    """A copy to change and build."""
    return Path(shutil.copytree(report.path, tmp_path / "firmware"))


@pytest.fixture(scope="module")
def firmware(tmp_path_factory: pytest.TempPathFactory, report: FirmwareReport) -> Firmware:
    return build(Path(shutil.copytree(report.path, tmp_path_factory.mktemp("built") / "firmware")))


@pytest.fixture(scope="module")
def dut(firmware: Firmware) -> Iterator[Dut]:
    with emulate_firmware(firmware.elf) as found:
        yield found


@pytest.fixture(scope="module")
def row(job: BenchJob) -> BenchResult:
    (found,) = QemuRunner().run(job, NANO)
    return found


def test_runner_compares_outputs_and_counts_instructions(row: BenchResult, job: BenchJob) -> None:
    assert (row.status, row.reason, row.method) == ("ok", "", "emulated-instructions")
    assert row.compared_inputs == 20
    assert row.max_relative_error is not None
    assert row.max_relative_error <= 1e-5
    macs = 4 * 2 * 9 * 64 + 64 * 5
    assert row.instructions is not None
    assert 2 * macs < row.instructions < 100 * macs
    assert row.latency_s is None  # an emulator's time is no time of a device
    assert "-O2" in row.flags
    assert "-mcpu=cortex-m4" in row.flags
    assert "arm-none-eabi-gcc" in row.toolchain


def test_counts_are_reproducible(row: BenchResult, job: BenchJob) -> None:
    (again,) = QemuRunner().run(job, NANO)
    ticks = [*row.details["ticks_of_two_runs"], *again.details["ticks_of_two_runs"]]
    assert max(ticks) - min(ticks) <= 1


@pytest.mark.long
def test_bundled_network_on_fashion_mnist(tmp_path: Path) -> None:
    """The trained LeNet5 computes on the emulated board what it computes in onnxruntime, as fast each time."""
    images, _ = bundled_test_images()
    model = Path(onnxfold.__file__).parent / "data" / "lenet5.onnx"
    job = prepare_job(model, tmp_path, inputs=[{"image": images[i : i + 1]} for i in range(20)])
    (row,) = QemuRunner().run(job, NANO)
    assert (row.status, row.compared_inputs) == ("ok", 20)
    assert row.max_relative_error is not None
    assert row.max_relative_error <= 1e-5
    one, two = row.details["ticks_of_two_runs"]
    assert abs(one - two) <= 1


def test_weights_are_in_flash_and_activations_in_ram(row: BenchResult, job: BenchJob, firmware: Firmware) -> None:
    weights = sum(int(np.prod(w.shape)) for w in load(job.onnx).weights.values()) - 4 * 4  # BatchNormalization
    sections = firmware.sections
    assert 4 * weights <= sections[".rodata"] <= 4 * weights + 2048
    assert sections[".data"] == 0
    arrays = 4 * 2 * 64 + 4 * 5 + row.details["activation_bytes"]
    assert arrays <= sections[".bss"] <= arrays + 1024
    assert row.flash_bytes == firmware.flash_bytes
    assert 0 < row.details["stack_bytes"] < 4096
    assert row.ram_bytes == sections[".bss"] + row.details["stack_bytes"]


def test_the_planned_memory_is_what_is_linked(report: FirmwareReport, firmware: Firmware) -> None:
    planned = report.arena_bytes + report.input_bytes + report.output_bytes
    assert planned <= firmware.static_bytes <= planned + 1024
    assert report.model_bytes - 2048 <= firmware.sections[".rodata"] <= report.model_bytes
    assert firmware.flash_bytes <= report.model_bytes + 16_384
    assert report.misfit == ""


def test_the_report_and_the_linker_say_the_same_of_what_does_not_fit(job: BenchJob, tmp_path: Path) -> None:
    planned = write_project(job.onnx, tmp_path / "firmware", "qemu", ram_bytes=9000)
    assert "K too much" in planned.misfit
    with pytest.raises(DoesNotFitError) as error:
        build(tmp_path / "firmware")
    needed = 9000 + error.value.overflow["RAM"]
    whole = planned.arena_bytes + planned.input_bytes + planned.output_bytes + 8192 + 1024
    assert needed <= whole <= needed + 1024


def test_firmware_knows_its_own_size(dut: Dut, firmware: Firmware) -> None:
    memory = dut.memory()
    assert memory["flash"] == firmware.flash_bytes
    assert memory["static"] == firmware.static_bytes


def test_time_goes_on_over_wraps_of_the_clock(dut: Dut) -> None:
    """SysTick has 24 bits: at 25 MHz it wraps after 0.67 s; QEMU's clock follows the real one while idle."""
    times = []
    for _ in range(3):
        (line,) = dut.command("timestamp")
        times.append(int(line.removeprefix("m-lap-us-")))
        time.sleep(0.7)
    assert all(0.6e6 < b - a < 30e6 for a, b in pairwise(times))


def test_operators_add_up_to_an_inference(job: BenchJob, row: BenchResult) -> None:
    counts = count_by_op(job)
    assert set(counts) == {"Conv", "Relu", "MaxPool", "Flatten", "Gemm", "other"}
    assert counts["Conv"] == max(counts.values())
    assert row.instructions is not None
    assert abs(sum(counts.values()) - row.instructions) < 0.05 * row.instructions + 2000
    assert counts["other"] < 0.05 * sum(counts.values())


def test_oversized_models_do_not_link_and_the_row_says_by_how_much(job: BenchJob) -> None:
    tiny = replace(NANO, flash_bytes=8192, ram_bytes=9000)
    (row,) = QemuRunner().run(job, tiny)
    assert row.status == "does-not-fit"
    assert row.flash_bytes is not None
    assert row.ram_bytes is not None
    assert row.flash_bytes == 8192 + row.details["overflow_bytes"]["FLASH"]
    assert row.ram_bytes == 9000 + row.details["overflow_bytes"]["RAM"]
    assert "needs" in row.reason
    assert "of flash, has 8 KB" in row.reason


def test_it_links_into_just_what_the_overflow_says(project: Path) -> None:
    (project / "memory.ld").write_text(memory_ld(4096, 8500))
    with pytest.raises(DoesNotFitError, match="overflows") as caught:
        build(project)
    flash, ram = (size + caught.value.overflow[r] for size, r in ((4096, "FLASH"), (8500, "RAM")))
    (project / "memory.ld").write_text(memory_ld(flash, ram))
    assert build(project).flash_bytes <= flash
    (project / "memory.ld").write_text(memory_ld(flash - 16, ram))
    with pytest.raises(DoesNotFitError):
        build(project)


def test_wrong_outputs_are_a_failed_row(job: BenchJob) -> None:
    wrong = replace(job, reference=[[r + np.float32(0.01)] for (r,) in job.reference][:2], inputs=job.inputs[:2])
    (row,) = QemuRunner().run(wrong, NANO)
    assert row.status == "failed"
    assert "outputs differ" in row.reason
    assert row.instructions is None


def test_a_broken_build_is_told_in_one_line(project: Path) -> None:
    (project / "src" / "port.c").write_text("int broken = ;\n")
    with pytest.raises(DeviceError, match=r"does not build: .*port\.c") as caught:
        build(project)
    assert "\n" not in str(caught.value)


def test_no_warnings_in_our_sources_at_any_optimisation(project: Path) -> None:
    for optimisation in ("-Os", "-O3"):
        assert build(project, optimisation=optimisation).flags.count(optimisation) == 1
        shutil.rmtree(project / "build")


def test_qemu_that_does_not_start_is_told(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"QEMU ended: .*missing\.elf"), emulate_firmware(tmp_path / "missing.elf"):
        pass


def test_firmware_that_crashes_is_told(firmware: Firmware, tmp_path: Path) -> None:
    """A firmware whose vector table is gone locks up at once."""
    elf = tmp_path / "broken.elf"
    subprocess.run(["arm-none-eabi-objcopy", "--remove-section", ".vectors", str(firmware.elf), str(elf)], check=True)
    with pytest.raises(DeviceError), emulate_firmware(elf):
        pass


def test_command_is_what_the_readme_says() -> None:
    assert command(Path("firmware.elf"), "pty")[:5] == ["qemu-system-arm", "-M", "mps2-an386", "-icount", "shift=0"]
