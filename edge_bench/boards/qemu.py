"""The emulated Cortex-M4F, QEMU's mps2-an386: build an ELF file for it from a model, read its section sizes, run it."""

import errno
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from onnxfold.edge_bench.boards.dut import DeviceError, Dut
from onnxfold.edge_bench.job import BenchJob
from onnxfold.export.firmware.generated_c import INSTALL as GENERATOR_INSTALL
from onnxfold.export.firmware.generated_c import PACKAGE as GENERATOR
from onnxfold.export.firmware.project import write_project

#: Program -> Debian packages that bring it.
PROGRAMS = {
    "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "make": "make",
    "qemu-system-arm": "qemu-system-arm",
}
EMULATOR = "qemu-system-arm"
#: With -icount shift=0 an instruction takes a nanosecond, and a tick of the 25 MHz clock 40 of them.
INSTRUCTIONS_PER_TICK = 40
_BOOT_S = 20.0
_END_S = 0.5
_BUILD_S = 600
_FLASH_SECTIONS = (".vectors", ".text", ".ARM.exidx", ".rodata", ".data")
_RAM_SECTIONS = (".data", ".bss")
_OVERFLOW = re.compile(r"region `(\w+)' overflowed by (\d+) bytes")


def missing_tools() -> str:
    """Return the missing programs or packages and how to install them, in one line; '' if none is missing."""
    if os.name != "posix":
        return "emulation needs Linux or macOS, or the Windows Subsystem for Linux"
    absent = [p for p in PROGRAMS if shutil.which(p) is None]
    steps = []
    if absent:
        steps.append(f"apt install {' '.join(PROGRAMS[p] for p in absent)}")
    if find_spec("emx_onnx_cgen") is None:
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


def project_of(job: BenchJob, folder: Path, memory: str) -> Path:
    """Write the project of a job into a new folder, and return that.

    C is generated once per job, which takes seconds, and kept in its scratch folder.
    """
    kept = job.work / "firmware"
    if not kept.is_dir():
        write_project(job.onnx, kept, "qemu", name=job.name)
    shutil.copytree(kept, folder)
    (folder / "memory.ld").write_text(memory)
    return folder


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
        return subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    except OSError as error:
        raise DeviceError(f"'{command[0]}' cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise DeviceError(f"'{command[0]}' did not finish within {_BUILD_S} s and was stopped") from None


@contextmanager
def emulate_firmware(elf: Path) -> Iterator[Dut]:
    """Run firmware, and yield it as a device that is connected; it ends with the block."""
    import tty  # not on Windows, where nothing of this is found missing before it is asked for

    master, slave = os.openpty()
    tty.setraw(slave)
    with tempfile.TemporaryFile("w+") as messages:
        try:
            process = subprocess.Popen(command(elf, "stdio"), stdin=slave, stdout=slave, stderr=messages)
        except OSError as error:
            os.close(master)
            raise DeviceError(f"'{EMULATOR}' cannot be run: {error.strerror}") from None
        finally:
            os.close(slave)
        dut = Dut(FileStream(master), "the emulated board")
        try:
            dut.connect(_BOOT_S)
            yield dut
        except DeviceError as error:
            if _has_ended(process):
                messages.seek(0)
                said = " ".join(messages.read().split())[:200]
                raise DeviceError(f"QEMU ended: {said or 'no message'}") from error
            raise
        finally:
            process.kill()
            process.wait()
            dut.close()


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the emulator has ended; its process needs a moment after it closes the line."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def command(elf: Path, serial: str) -> list[str]:
    """Return the command that runs firmware; `serial` is where QEMU puts its serial line."""
    return [
        EMULATOR, "-M", "mps2-an386", "-icount", "shift=0", "-display", "none", "-monitor", "none",
        "-serial", serial, "-kernel", str(elf),
    ]  # fmt: skip


class FileStream:
    """A terminal's file descriptor, for example the master of a pseudo-terminal; owns it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, timeout_s: float) -> bytes:
        """Return the bytes that have come, waiting at most that long for the first; b'' if none came."""
        readable, _, _ = select.select([self._descriptor], [], [], max(timeout_s, 0))
        if not readable:
            return b""
        data = os.read(self._descriptor, 1 << 16)
        if not data:
            raise OSError(errno.EIO, "the connection was closed")
        return data

    def write(self, data: bytes, timeout_s: float) -> None:
        """Send all of it, or raise TimeoutError when the time is over."""
        deadline = time.monotonic() + timeout_s
        while data:
            _, writable, _ = select.select([], [self._descriptor], [], max(deadline - time.monotonic(), 0))
            if not writable:
                raise TimeoutError(errno.ETIMEDOUT, "it accepts no input")
            data = data[os.write(self._descriptor, data[:256]) :]

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)
