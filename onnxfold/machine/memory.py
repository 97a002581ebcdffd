"""The memory limit. Every allocation whose size comes from a file is checked against it first.

Sizes are counted from shapes, before anything is allocated, and they are counted the same on every run: what else the
process holds does not matter. What a network needs whose shapes are not known is found out by a child process, see
:mod:`onnxfold.graph.run.session`.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from pathlib import Path

from onnxfold.config.quantities import parse_bytes, show_bytes
from onnxfold.errors import MemoryLimitError
from onnxfold.machine.cgroups import MOUNTED, OWN, read_settings

#: Part of the machine's memory that is used where no limit is given; the rest is left to the system and its caches.
DEFAULT_PART = 0.75

#: Where the machine does not say how much it has.
_UNKNOWN_MACHINE = 4 << 30

#: What to do about sizes that follow from those of the inputs.
SMALLER = "give smaller --input-shapes or fewer samples, or more with --max-memory"

_chosen: ContextVar[int | None] = ContextVar("memory limit", default=None)


def limit() -> int:
    """Return the most bytes that one step of the work may take."""
    chosen = _chosen.get()
    return int(DEFAULT_PART * machine_bytes()) if chosen is None else chosen


@contextmanager
def memory_limit(most: int | str | None) -> Iterator[int]:
    """Set the limit for what runs inside the block; None leaves it as it is at the beginning."""
    # What the machine has is looked up once, not by every step of the work.
    token = _chosen.set(limit() if most is None else parse_bytes(most))
    try:
        yield limit()
    finally:
        _chosen.reset(token)


def require(count: int, what: str, advice: str = "give more with --max-memory, if the machine has it") -> None:
    """Refuse what would take more memory than the limit."""
    most = limit()
    if count > most:
        raise MemoryLimitError(f"{what} needs {show_bytes(count)}, and the limit is {show_bytes(most)}: {advice}")


def array_bytes(shape: tuple[int, ...], item_bytes: int) -> int:
    """Return the bytes of an array, without overflow for any shape in a file."""
    return prod((int(d) for d in shape), start=item_bytes)


def machine_bytes(cgroups: Path = MOUNTED, own: Path = OWN) -> int:
    """Return the memory of the machine, or of the container or process if that may use less."""
    # The limits of this process' group and of those around it, in version 2 and version 1.
    settings = read_settings("memory", "memory.max", "memory.limit_in_bytes", cgroups, own)
    known = [_physical(), _process_limit(), *(int(text) for text in settings if text.isdigit())]
    return min((n for n in known if n is not None), default=_UNKNOWN_MACHINE)


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not on every system
        return None


def _process_limit() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((n for n in limits if n != resource.RLIM_INFINITY), default=None)


def give_back() -> int:
    """Return freed memory to the system, where the C library can; return the bytes that this process holds then.

    glibc keeps what lies between blocks that are in use: of a model of many wide layers, some megabytes per layer.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
    return held_bytes()


def held_bytes() -> int:
    """Return the bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
