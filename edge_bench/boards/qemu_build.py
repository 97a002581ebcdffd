"""The tools of the emulated Cortex-M4F; build an ELF file for it from a model, and read its section sizes."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from onnxfold.edge_bench.boards.dut import DeviceError
from onnxfold.edge_bench.job import BenchJob
from onnxfold.export.firmware.generated_c import INSTALL as GENERATOR_INSTALL
from onnxfold.export.firmware.generated_c import PACKAGE as GENERATOR
from onnxfold.export.firmware.project import FirmwareReport, write_project

#: Program -> Debian packages that bring it.
PROGRAMS = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "make": "make",
    "qemu-system-arm": "qemu-system-arm",
}


def missing_tools(programs: Sequence[str] = tuple(PROGRAMS), *, generator: bool = True) -> str:
    """Return the missing programs or packages and how to install them, in one line; '' if none is missing."""
    if os.name != "posix":
        return "emulation needs Linux or macOS, or the Windows Subsystem for Linux"
    absent = [p for p in programs if shutil.which(p) is None]
    steps = []
    if absent:
        steps.append(f"apt install {' '.join(PROGRAMS[p] for p in absent)}")
    if generator and find_spec("emx_onnx_cgen") is None:
        absent.append(GENERATOR)
        steps.append(GENERATOR_INSTALL)
    return f"{', '.join(absent)} missing: {' && '.join(steps)}" if absent else ""


def version_of(program: str) -> str:
    """Return the first line of what a program says about its version, its name if it says nothing."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return program
    return (done.stdout.splitlines() or [program])[0].strip()


_SECONDS = 600
_FLASH_SECTIONS = (".vectors", ".text", ".ARM.exidx", ".rodata", ".data")
_RAM_SECTIONS = (".data", ".bss")
_OVERFLOW = re.compile(r"region `(\w+)' overflowed by (\d+) bytes")


@dataclass(frozen=True)
class Firmware:
    """A linked firmware."""

    elf: Path
    sections: Mapping[str, int]
    toolchain: str  # compiler and version, and what it was given
    flags: str

    @property
    def flash_bytes(self) -> int:
        """Code, constants and initial values of variables."""
        return sum(self.sections.get(name, 0) for name in _FLASH_SECTIONS)

    @property
    def static_bytes(self) -> int:
        """Variables, activations included; without the stack."""
        return sum(self.sections.get(name, 0) for name in _RAM_SECTIONS)


class DoesNotFitError(DeviceError):
    """The firmware needs more memory than it is linked for."""

    def __init__(self, overflow: Mapping[str, int]) -> None:
        self.overflow = overflow
        text = ", ".join(f"{region} by {count:,} bytes" for region, count in overflow.items())
        super().__init__(f"the firmware does not link: it overflows {text}; fold more, or use a board with more memory")


def project_of(job: BenchJob, folder: Path, memory: str) -> FirmwareReport:
    """Write the project of a job into a new folder.

    C is generated once per job, which takes seconds, and kept in its scratch folder.
    """
    kept, note = job.work / "firmware", job.work / "firmware.json"
    if not note.is_file():
        shutil.rmtree(kept, ignore_errors=True)
        note.write_text(json.dumps(asdict(write_project(job.onnx, kept, "qemu", name=job.name))))
    shutil.copytree(kept, folder)
    (folder / "memory.ld").write_text(memory)
    return FirmwareReport(**{**json.loads(note.read_text()), "path": str(folder)})


def build(project: Path, *, optimisation: str = "-O2", defines: str = "") -> Firmware:
    """Build a project that :func:`onnxfold.export.firmware.write_project` wrote for QEMU."""
    variables = [f"OPT={optimisation}", f"DEFINES={defines}"]
    done = _run(["make", "-s", "-C", str(project), *variables])
    if done.returncode:
        overflow = {m[1]: int(m[2]) for m in _OVERFLOW.finditer(done.stderr)}
        if overflow:
            raise DoesNotFitError(overflow)
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        raise DeviceError(f"the firmware does not build: {' '.join((errors or ['no message'])[0].split())[:300]}")
    elf = project / "firmware.elf"
    flags = _run(["make", "-s", "-C", str(project), *variables, "flags"]).stdout
    sizes = _run(["arm-none-eabi-size", "-A", "-d", str(elf)]).stdout
    sections = {m[1]: int(m[2]) for m in re.finditer(r"^(\.\S+)\s+(\d+)", sizes, re.MULTILINE)}
    return Firmware(elf, sections, version_of("arm-none-eabi-gcc"), " ".join(flags.split()))


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except OSError as error:
        raise DeviceError(f"'{command[0]}' cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise DeviceError(f"'{command[0]}' did not finish within {_SECONDS} s and was stopped") from None
