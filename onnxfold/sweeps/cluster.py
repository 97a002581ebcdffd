"""Clusters that run jobs: workers of this machine, or one of dask.distributed that is there already."""

import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from onnxfold.errors import ConfigError
from onnxfold.machine.memory import DEFAULT_PART, limit
from onnxfold.machine.python import keep_folders_out
from onnxfold.machine.threads import usable_cores
from onnxfold.printable import shortened
from onnxfold.sweeps.results import require_packages

if TYPE_CHECKING:
    from distributed import Client

#: How often a job is given to another worker when its worker dies.
RETRIES = 3
#: Addresses whose peers show certificates; what is said of others.
ENCRYPTED = ("tls://", "wss://")
UNPROTECTED = (
    "whoever reaches the scheduler can run code on its workers and read the models; tls:// asks for certificates"
)
_CONNECT_SECONDS = 30
#: Bytes of a worker that has loaded everything and does nothing, and the least that a job is given by default.
_IDLE, _LEAST = 1 << 30, 1 << 30
#: Of workers here. A worker that pauses because of memory that the allocator keeps would never go on: it ends, and a
#: fresh one takes its place.
_CONFIG: dict[str, Any] = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 0.95,
    "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
}
#: Models travel inside of tasks, so that the scheduler sends them again to a worker that takes another one's place.
_OF_CLIENTS = {"distributed.admin.large-graph-warning-threshold": "1 TiB"}


def default_jobs() -> int:
    """Return how many workers this machine gets: one per core, if there is memory for so many."""
    return max(min(usable_cores(), limit() // _LEAST), 1)


@contextmanager
def local_cluster(jobs: int, retries: int = RETRIES, memory: int | None = None) -> Iterator["Client"]:
    """Start workers on this machine, of one thread each; they end with the block, or with this process.

    They and their scheduler talk by TLS with keys of this run, so that no other user of the machine can give them work.
    """
    require_packages("distributed", "cryptography")
    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    settings = {**_CONFIG, **_OF_CLIENTS, "distributed.scheduler.allowed-failures": retries}
    keep_folders_out()
    with dask.config.set(settings), _quiet():
        # A job takes a part of its worker, as a fold takes a part of its machine.
        own = int((memory or limit() // jobs) / DEFAULT_PART) + _IDLE
        with (
            _deaf_loop() as loop,
            LocalCluster(
                n_workers=jobs, threads_per_worker=1, processes=True, memory_limit=own, loop=loop,
                security=Security.temporary(),
                dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster, loop=loop) as client,
        ):  # fmt: skip
            yield client


@contextmanager
def _deaf_loop() -> Iterator[Any]:
    """Start the loop that starts workers, in a thread that interrupts do not reach, and so none of the workers.

    Ctrl-C goes to all processes of a terminal. Only this one is to end of it; its workers end with it.
    """
    from multiprocessing import resource_tracker

    from distributed.utils import LoopRunner

    runner = LoopRunner(asynchronous=False)
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # whichever thread starts it hears interrupts afterwards
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            runner.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    else:
        runner.start()
    try:
        yield runner.loop
    finally:
        runner.stop()


@contextmanager
def heard_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a check that raises once more an interrupt that nobody heard.

    Python ignores exceptions in finalisers, and those of futures take a good part of a sweep of small jobs.
    """
    heard, before = Event(), signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or current_thread() is not main_thread():
        yield lambda: None
        return

    def hear(number: int, frame: FrameType | None) -> None:
        heard.set()
        signal.default_int_handler(number, frame)

    def check() -> None:
        if heard.is_set():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hear)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def existing_cluster(address: str) -> Iterator["Client"]:
    """Connect to a scheduler."""
    require_packages("distributed")
    import dask
    import distributed  # noqa: F401  # before the settings change, because it brings settings of its own

    with dask.config.set(_OF_CLIENTS), _quiet():
        try:
            client = connect_in_time(address)
        except (OSError, ValueError, TypeError) as error:
            why = shortened(" ".join(str(error).split())) or type(error).__name__
            hint = "start one with 'dask scheduler'"
            if address.startswith(ENCRYPTED) and isinstance(error, TypeError):
                hint = "name certificates in dask's configuration (distributed.comm.tls)"
            raise ConfigError(f"no scheduler answers at '{address}': {why}; {hint}") from None
        with client:
            yield client


def connect_in_time(address: str, **how: Any) -> "Client":
    """Connect within a time, also to what takes the connection and then says nothing, for which dask waits forever."""
    from distributed import Client

    class ClosingClient(Client):  # type: ignore[misc]
        """A client that is closed where it cannot start; collected later, it might wait for a lock of the collector."""

        def start(self, **options: Any) -> None:
            try:
                super().start(**options)
            except BaseException:
                self.close()
                raise

    made: Future[Client] = Future()

    def connect() -> None:
        try:
            made.set_result(ClosingClient(address, timeout=_CONNECT_SECONDS, **how))
        except BaseException as error:  # it is raised below, in the thread that waits
            made.set_exception(error)

    Thread(target=connect, daemon=True).start()
    if not wait([made], timeout=_CONNECT_SECONDS + 1).done:
        raise TimeoutError(f"it said nothing for {_CONNECT_SECONDS} seconds")
    return made.result()


@contextmanager
def _quiet() -> Iterator[None]:
    """Let dask.distributed say nothing: what matters is in the rows and in the progress."""
    names = ("distributed", "distributed.worker", "distributed.nanny", "distributed.scheduler", "distributed.client")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
