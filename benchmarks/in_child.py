"""Work in a process of its own, so that what ends it ends nothing else."""

import io
import multiprocessing
import resource
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def run_in_child(function: Callable[[], Any], limit: float | None = None, *, start: str = "fork") -> Any:
    """Return what a function gives in a process of its own; None where it ends, or its seconds of processor time do.

    A program with threads must start children by 'spawn', and the function must be one that can be pickled.
    """
    context: Any = multiprocessing.get_context(start)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, function, limit))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        child.join()


def _send(sender: Connection, function: Callable[[], Any], limit: float | None) -> None:
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 1))
    sys.stdin = io.StringIO()
    sender.send(function())
