"""Firmware in QEMU's mps2-an386, a Cortex-M4F, with its serial line on a pseudo-terminal."""

import errno
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onnxfold.edge_bench.boards.dut import DeviceError, Dut

PROGRAM = "qemu-system-arm"
#: With -icount shift=0 an instruction takes a nanosecond, and a tick of the 25 MHz clock 40 of them.
INSTRUCTIONS_PER_TICK = 40
_BOOT_S = 20.0
_END_S = 0.5


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
            raise DeviceError(f"'{PROGRAM}' cannot be run: {error.strerror}") from None
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
        PROGRAM, "-M", "mps2-an386", "-icount", "shift=0", "-display", "none", "-monitor", "none",
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
