"""A sweep of which a worker is killed, then the client, and which then goes on."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil  # comes with dask.distributed

from benchmarks.sweeps.grid import command, request
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.row import Row

_LONGEST_S = 3600.0


@dataclass(frozen=True)
class Killed:
    """What was counted.

    Parameters
    ----------
    jobs : int
        Jobs of the sweep.
    at_worker, at_client : int
        Rows when the worker and when the client was killed.
    left_workers : int
        Workers that outlived the client.
    rows, settings, done : int
        Rows at the end; different combinations among them; those that are finished without an error.
    repeated : int
        Rows that were there when the client was killed and are others now.
    models : int
        Folded models on the disk.
    third_s : float
        Seconds of a third run, which has nothing to do.
    """

    jobs: int
    at_worker: int
    at_client: int
    left_workers: int
    rows: int
    settings: int
    done: int
    repeated: int
    models: int
    third_s: float

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, and nothing twice."""
        all_there = self.jobs == self.rows == self.settings == self.done == self.models
        return all_there and not self.repeated and not self.left_workers


def killed(out: Path, jobs: int = 2) -> Killed:
    """Run the sweep, kill, run it again, and count."""
    folder, total = SweepFolder(out), len(request().jobs())
    words = [sys.executable, "-m", "onnxfold", *command(out, jobs)]
    first = subprocess.Popen(words)
    _wait(lambda: len(folder.rows()) >= total // 4, first)
    workers = _workers(first.pid)
    at_worker = len(folder.rows())
    workers[0].kill()
    print(f"killed worker {workers[0].pid} of {[w.pid for w in workers]} at {at_worker} rows", flush=True)
    _wait(lambda: len(folder.rows()) >= total // 2, first)
    workers = _workers(first.pid)
    first.kill()
    first.wait()
    before = folder.rows()
    print(f"killed the client at {len(before)} rows; it had the workers {[w.pid for w in workers]}", flush=True)
    _, left = psutil.wait_procs(workers, timeout=30)
    subprocess.run(words, check=True)
    after = folder.rows()
    start = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    third = time.perf_counter() - start
    return Killed(
        total, at_worker, len(before), len(left), len(after), len({row.setting for row in after.values()}),
        sum(row.status == "done" for row in after.values()),
        sum(_made(row) != _made(after[key]) for key, row in before.items()), len(list(folder.models.iterdir())), third,
    )  # fmt: skip


def _made(row: Row) -> tuple[str | None, str]:
    return row.finished, row.status


def _workers(client: int) -> list[psutil.Process]:
    """Return the processes of workers; the interpreter starts another one, which tracks resources."""
    children = psutil.Process(client).children(recursive=True)
    return [child for child in children if any("spawn_main" in word for word in child.cmdline())]


def _wait(until: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _LONGEST_S
    while not until():
        assert process.poll() is None, "the sweep ended before it was killed"
        assert time.monotonic() < end, "the sweep takes too long"
        time.sleep(0.05)
