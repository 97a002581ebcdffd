"""A board on a pseudo-terminal, well-behaved or not."""

import os
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

#: What a board sends for a command; None: it disappears.
Answers = Callable[[str], bytes | None]


class FakeBoard:
    """Answers every command on a pseudo-terminal until it is unplugged.

    Parameters
    ----------
    answers : callable
        From a command to the bytes that are sent back.
    """

    def __init__(self, answers: Answers) -> None:
        self.master, slave = os.openpty()
        tty.setraw(slave)
        self.port = os.ttyname(slave)
        self._slave = slave  # kept open: a terminal without reader forgets what was written
        self._answers = answers
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def open(self) -> int:
        """Return a descriptor of the host's side."""
        return os.open(self.port, os.O_RDWR | os.O_NOCTTY)

    def unplug(self) -> None:
        """Let the port disappear, once: a board that goes by itself does so in its own thread."""
        with self._lock:
            descriptors = self._slave, self.master
            self._slave = self.master = -1
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _serve(self) -> None:
        pending = b""
        while self.master >= 0:
            try:
                pending += os.read(self.master, 4096)
            except OSError:
                return
            *commands, pending = pending.split(b"%")
            for command in commands:
                said = self._answers(command.decode())
                if said is None:
                    self.unplug()
                    return
                try:
                    os.write(self.master, said)
                except OSError:
                    return


def scripted(answers: Mapping[str, bytes | None], default: bytes = b"m-ready\r\n") -> Answers:
    """Answer by the first word of a command."""
    greeting: dict[str, bytes | None] = {"name": b"m-name-dut-[fake]\r\nm-ready\r\n"}
    table = {**greeting, **answers}
    return lambda command: table.get(command.split(" ")[0], default)


@contextmanager
def board(answers: Answers) -> Iterator[FakeBoard]:
    found = FakeBoard(answers)
    try:
        yield found
    finally:
        if found.master >= 0:
            found.unplug()
            time.sleep(0)
