"""The firmware's portable part, built by this machine's compiler and run on a pseudo-terminal."""

import os
import shutil
import subprocess
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from onnxfold.edge_bench.boards.dut import Dut
from onnxfold.edge_bench.boards.qemu import FileStream
from onnxfold.export.firmware.interface import Interface, Tensor, config_h, tensors_c

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "export" / "firmware" / "core"
FLAGS = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", "-O1")

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed: apt install gcc")


def vector(count: int, name: str = "x") -> Tensor:
    return Tensor(name, "float32", (1, count), (0, 1))


def identity_interface(count: int = 3) -> Interface:
    return Interface((vector(count),), (vector(count, "y"),))


def build_core(
    folder: Path, interface: Interface, model: Sequence[Path], *flags: str, compiler: str = "gcc", arena: int = 64
) -> Path:
    """Build core, host port and the files of a model; C++ files are given as objects."""
    (folder / "model_config.h").write_text(config_h(interface, "twice", "host", "test", arena))
    (folder / "model_tensors.c").write_text(tensors_c(interface))
    sources = [*CORE.glob("*.c"), HERE / "host_port.c", folder / "model_tensors.c", *model]
    program = folder / "firmware"
    compile_native(
        [compiler, *FLAGS, f"-I{CORE}", f"-I{folder}", *map(str, sources), *flags, "-lm", "-o", str(program)]
    )
    return program


def build_project(project: Path) -> Path:
    """Build the model and the core of a project for QEMU here; generated weights without warnings as errors."""
    source = project / "src"
    board = {"startup.c", "port.c"}
    sources = [p for p in source.glob("*.c") if p.name not in board]
    program = project / "native"
    compile_native(
        ["gcc", *FLAGS, f"-I{source}", *map(str, sources), str(HERE / "host_port.c"), "-lm", "-o", str(program)]
    )
    return program


def compile_native(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def transcript(program: Path, text: str) -> str:
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.replace("\r\n", "\n")


@contextmanager
def running(program: Path) -> Iterator[Dut]:
    """Yield the program as a device that is connected."""
    master, slave = os.openpty()
    tty.setraw(slave)
    process = subprocess.Popen([program], stdin=slave, stdout=slave)
    os.close(slave)
    dut = Dut(FileStream(master), "the program", timeout_s=60.0)  # the machine may be busy
    try:
        dut.connect(60.0)
        yield dut
    finally:
        process.kill()
        process.wait()
        dut.close()
