"""Requirements for building and running firmware on this machine, with installation hints."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec

from onnxfold.export.firmware.generated_c import INSTALL as GENERATOR_INSTALL
from onnxfold.export.firmware.generated_c import PACKAGE as GENERATOR

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
