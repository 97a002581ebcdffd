"""Run a benchmark: models -> jobs -> the best available runner per device -> rows."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, Unpack

from onnxfold.budget.devices import DeviceProfile, MemoryNeed, known_devices, load_device, misfit
from onnxfold.config import checks
from onnxfold.config.checks import takes_keywords
from onnxfold.edge_bench.job import BenchJob, Runner, needs, prepare_job
from onnxfold.edge_bench.result import BenchResult
from onnxfold.edge_bench.runners.linux import HOST, SshRunner, run_here
from onnxfold.errors import ConfigError, OptionTypeError
from onnxfold.progress import Progress, silent

ALL = "all"
_MOST_REPEATS = 1_000_000
#: More than any machine has processors; a runtime starts every requested thread.
_MOST_THREADS = 1024


@dataclass(frozen=True)
class Plan:
    """The means of measuring a board; of this machine, which measures itself, there are none."""

    device: DeviceProfile | None  # None is this machine
    board: Runner | None = None  # reaches the board itself; then no stand-in is run
    stand_ins: tuple[Runner, ...] = ()  # emulate or estimate an absent board; all that can run are run


class BenchOptions(TypedDict, total=False):
    """Options of a benchmark by name."""

    port: str | None  # serial port of the one microcontroller among the devices
    host: str | None  # address for ssh of the one board with Linux among them
    repeats: int  # inferences in, and before, a measurement
    warm_up: int
    threads: int  # of runtimes that have any
    seed: int  # of the synthetic inputs that outputs are compared on
    input_shapes: Mapping[str, Sequence[int]] | None  # sizes of free dimensions; a free batch is 1


@takes_keywords(BenchOptions, port=None, host=None, repeats=100, warm_up=10, threads=1, seed=0, input_shapes=None)
def bench(
    models: Sequence[str | Path], devices: Sequence[str] = (ALL,), *, progress: Progress = silent,
    **options: Unpack[BenchOptions],
) -> list[BenchResult]:  # fmt: skip
    """Measure ONNX models on devices; return rows, model by model, in each the devices in the order given.

    Devices are names or TOML files of profiles, 'host' for this machine, 'all' for it and every known board. What could
    not be measured is a row, too; a model that cannot be loaded, or that onnxruntime does not run, is an error.
    """
    if isinstance(models, str | bytes | PathLike):
        raise OptionTypeError("models is a list of paths, not one path: give [path]")
    paths = [checks.path("model", model) for model in models]
    port, host, shapes = options["port"], options["host"], options["input_shapes"]
    effort: dict[str, Any] = {
        "repeats": checks.whole("repeats", options["repeats"], least=1, most=_MOST_REPEATS),
        "warm_up": checks.whole("warm_up", options["warm_up"], least=0, most=_MOST_REPEATS),
        "threads": checks.whole("threads", options["threads"], least=1, most=_MOST_THREADS),
        "seed": checks.seed(options["seed"]),
        "input_shapes": checks.shapes("input_shapes", {} if shapes is None else shapes),
    }
    for name, value in (("port", port), ("host", host)):
        if value is not None:
            checks.text(name, value)
    targets = _targets([checks.path_text("devices", device) for device in checks.entries("devices", devices)])
    _check_boards(targets, port, host)
    plans = [plan(target, port=port, host=host) for target in targets]
    rows: list[BenchResult] = []
    for number, (path, name) in enumerate(zip(paths, _names(paths), strict=True)):
        with tempfile.TemporaryDirectory(prefix="onnxfold-bench-") as folder:
            job = prepare_job(path, Path(folder), name=name, **effort)
            rows += measure(job, plans, progress, done=number * len(plans), total=len(paths) * len(plans))
    return rows


def measure(
    job: BenchJob, plans: Sequence[Plan], progress: Progress = silent, *, done: int = 0, total: int = 0
) -> list[BenchResult]:
    """Return the rows of one job on all devices; `done` of `total` steps precede it."""
    rows: list[BenchResult] = []
    need: MemoryNeed | None = None
    for number, planned in enumerate(plans):
        device = planned.device
        progress(f"{job.name} on {HOST if device is None else device.name}", done + number, total or len(plans))
        if device is None:
            rows += run_here(job)
        else:
            need = need or needs(job)
            rows += [_add_memory(row, need, device) for row in _measure(job, planned, device, need)]
    return rows


def plan(device: DeviceProfile | None, *, port: str | None = None, host: str | None = None) -> Plan:
    """Choose the means for a device: the board if its port or address is given, else what can stand in for it."""
    if device is None:
        return Plan(None)
    # Tool chains and serial ports are only looked at where they are needed.
    from onnxfold.edge_bench.runners.qemu_runner import CORE, EstimateRunner, QemuRunner
    from onnxfold.edge_bench.runners.serial_runner import SerialRunner

    if device.kind == "linux" and host:
        return Plan(device, SshRunner(host))
    if device.kind == "microcontroller" and port:
        return Plan(device, SerialRunner(port))
    emulators: tuple[Runner, ...] = (QemuRunner(),) if device.emulated_core == CORE else ()
    estimates: tuple[Runner, ...] = (EstimateRunner(),) if device.cycles_per_instruction else ()
    return Plan(device, None, (*emulators, *estimates))


def _measure(job: BenchJob, planned: Plan, device: DeviceProfile, need: MemoryNeed) -> list[BenchResult]:
    row = partial(BenchResult, model=job.name, device=device.name)
    if planned.board is not None:
        lacking = planned.board.missing()
        if lacking:
            return [row(status="unavailable", reason=lacking, method="measured-device")]
        return planned.board.run(job, device)
    reason = misfit(need, device)
    if reason:
        return [row(status="does-not-fit", reason=reason, method="estimated-latency")]
    lacks = [runner.missing() for runner in planned.stand_ins]
    able = [runner for runner, lack in zip(planned.stand_ins, lacks, strict=True) if not lack]
    if able:
        return [result for runner in able for result in runner.run(job, device)]
    option = "--host user@board" if device.kind == "linux" else "--port, e.g. /dev/ttyACM0"
    reason = "; or ".join([f"no board: plug it in and give {option}", *dict.fromkeys(lacks)])
    return [row(status="unavailable", reason=reason, method="estimated-latency")]


def _add_memory(row: BenchResult, need: MemoryNeed, device: DeviceProfile) -> BenchResult:
    """Add what the model takes where a runner says nothing of memory."""
    if row.ram_bytes is not None or row.flash_bytes is not None:
        return row
    if device.kind == "linux":  # the arena of a microcontroller is not the memory of a process
        return replace(row, flash_bytes=need.model_bytes, memory="RAM: only when measured; flash: the model's file")
    return replace(row, ram_bytes=need.ram_bytes, flash_bytes=need.model_bytes, memory=need.basis)


def _targets(devices: Sequence[str]) -> list[DeviceProfile | None]:
    names = [n for d in devices for n in ((HOST, *known_devices()) if d == ALL else (d,))]
    profiles = [None if name == HOST else load_device(name) for name in names]
    targets = {HOST if profile is None else profile.name: profile for profile in profiles}
    if not targets:
        raise ConfigError(f"no device: give 'host', '{ALL}', or one of {', '.join(known_devices())}")
    return list(targets.values())


def _check_boards(targets: Sequence[DeviceProfile | None], port: str | None, host: str | None) -> None:
    for option, address, kind, what in (
        ("--port", port, "microcontroller", "a microcontroller"),
        ("--host", host, "linux", "a board with Linux"),
    ):
        meant = [t.name for t in targets if t is not None and t.kind == kind]
        if address and not meant:
            raise ConfigError(f"{option} is for {what}, and none is among the devices: give one by --device")
        if address and len(meant) > 1:
            raise ConfigError(f"{option} reaches one board, and could mean {', '.join(meant)}: give one by --device")


def _names(models: Sequence[str | Path]) -> list[str]:
    """Return the files' names, with their folders where they would be the same."""
    stems = [Path(m).stem for m in models]
    return [s if stems.count(s) == 1 else str(m) for s, m in zip(stems, models, strict=True)]
