"""The number of computing threads, and their way of waiting.

A thread that waits by spinning takes a core from whoever would use it. On a machine that is shared, this is often the
very thread that it waits for: networks of small layers then take ten times as long as their share of the machine asks
for. So nothing here spins, and there are as many threads as this process may use cores: not more, since threads of one
parallel loop wait for the slowest of them.

OpenMP, which torch computes with, decides when it is loaded whether its threads spin (:func:`load_with`).
Where somebody else loaded it before, GNU's still spins a thousand times less as long as it manages more threads than
there are cores (:func:`crowd`).
"""

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, lru_cache
from pathlib import Path
from threading import Event, Lock, Thread

from threadpoolctl import ThreadpoolController

from onnxfold.machine.cgroups import MOUNTED, OWN, read_settings

#: The name of threads that only keep helpers.
TEAM = "onnxfold idle team"


def usable_cores(mounted: Path = MOUNTED, own: Path = OWN) -> int:
    """Return how many threads can compute: of allowed cores, control group and ``OMP_NUM_THREADS``, the least."""
    requested = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    known = [int(requested)] if requested.isdigit() and int(requested) else []
    return max(min([_affinity(), *_quotas(mounted, own), *known]), 1)


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


@cache
def _quotas(mounted: Path, own: Path) -> tuple[int, ...]:
    """Return the cores that control groups grant: microseconds of computing per period."""
    cores = []
    quotas = read_settings("cpu", "cpu.max", "cpu.cfs_quota_us", mounted, own)
    periods = read_settings("cpu", "cpu.max", "cpu.cfs_period_us", mounted, own)
    for quota, period in zip(quotas, periods, strict=False):
        granted, per = quota.split()[0], period.split()[-1]
        if granted.isdigit() and per.isdigit() and int(per):  # 'max' and -1: no limit
            cores.append(max(math.ceil(int(granted) / int(per)), 1))
    return tuple(cores)


class _SharedLimit:
    """Lets numpy's matrix products take one thread, in the process, until the last Python thread inside leaves.

    Small ones alternate with nodes in onnxruntime: threads of two libraries would wait for each other more than they
    compute, and sums would change from run to run.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limits = Lock(), 0, ExitStack()
        self._limited: ThreadpoolController | None = None

    def __enter__(self) -> None:
        with self._lock:
            pools = thread_pools()
            if pools is not self._limited:  # libraries were loaded since others entered, or nobody is inside
                self._limits.enter_context(pools.limit(limits=1, user_api="blas"))
                self._limited = pools
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.close()
                self._limited = None


def thread_pools() -> ThreadpoolController:
    """Return the thread pools of the libraries that are loaded, looked for once."""
    return _thread_pools(len(sys.modules))


@lru_cache(1)
def _thread_pools(_modules: int) -> ThreadpoolController:
    """Return the thread pools of the libraries, which come with modules; to look for them takes ten milliseconds."""
    return ThreadpoolController()


ONE_BLAS_THREAD = _SharedLimit()


@contextmanager
def load_with(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables for libraries that are loaded inside; the environment is left as it was.

    What the user has set holds.
    """
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def crowd(parallel_loop: Callable[[], object], threads: int) -> Iterator[None]:
    """Keep idle OpenMP threads in addition to the computing ones.

    GNU's OpenMP lets threads spin for a millisecond, but for microseconds while there are more of them than cores.
    """
    teams = 0 if threads < 2 else max(-(-(_affinity() - threads + 1) // (threads - 1)), 1)
    done = Event()
    with ExitStack() as stack:
        stack.callback(done.set)
        for _ in range(teams):
            ready = Event()
            Thread(target=_keep_team, args=(parallel_loop, ready, done), name=TEAM, daemon=True).start()
            ready.wait()
        yield


def _keep_team(parallel_loop: Callable[[], object], ready: Event, done: Event) -> None:
    """Let OpenMP give this thread helpers, and sleep with them."""
    try:
        parallel_loop()
    finally:
        ready.set()
    done.wait()
