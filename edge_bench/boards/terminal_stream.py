"""A terminal's file descriptor as a stream of bytes."""

import errno
import os
import select
import time


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
