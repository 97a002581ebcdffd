"""Locks that the system releases when their process ends, even if it is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

_fcntl: Any = None
with suppress(ImportError):  # Windows: then nothing is locked, and no remains are removed
    _fcntl = import_module("fcntl")


def lock(descriptor: int) -> bool | None:
    """Lock an open file or folder until it is closed; return False if somebody else holds it, None if nobody can."""
    if _fcntl is None:
        return None
    try:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time give names to files in a folder, where the file system has locks."""
    if _fcntl is None:
        yield
        return
    descriptor = -1
    try:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            _fcntl.flock(descriptor, _fcntl.LOCK_EX)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)
