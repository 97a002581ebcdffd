"""A sweep over a scheduler and two workers in processes of their own, of which one is killed, and then the client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from onnxfold import api
from onnxfold.sweeps.cluster import heard_interrupts
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.row import Row

MODEL = Path(api.__file__).parent / "data" / "lenet5.onnx"
SPARSITIES, METHODS = 8, ("fold-naive", "prune-l1")


def _wait(until: Callable[[], object], processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for something; fail where a process ends before."""
    end = time.monotonic() + 180
    while not until():
        assert time.monotonic() < end, "it takes too long"
        assert all(process.poll() in (None, -signal.SIGKILL) for process in processes), "a process ended"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Return a function that starts a module of Python; what is left at the end is killed."""
    with ExitStack() as stack:

        def popen(*words: object) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-m", *map(str, words)], cwd=tmp_path, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield popen


@pytest.mark.long
def test_a_killed_worker_and_a_killed_client_lose_nothing(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    file = tmp_path / "scheduler.json"
    cluster = [start("dask", "scheduler", "--port", 0, "--no-dashboard", "--scheduler-file", file)]
    _wait(file.exists, cluster)
    worker = ("dask", "worker", "--scheduler-file", file, "--nthreads", 1, "--no-nanny", "--no-dashboard")
    cluster += [start(*worker, "--local-directory", tmp_path / name) for name in ("one", "two")]
    from distributed import Client

    with Client(scheduler_file=str(file), timeout=60) as client:
        address = client.scheduler.address
        client.wait_for_workers(2, timeout=120)
    folder = SweepFolder(tmp_path / "out")
    command = (
        "onnxfold", "sweep", MODEL, "--out", folder.path, "--scheduler", address, "--inputs", "noise", "--samples", 8,
        "--sparsity", "0.1:0.8:0.1", "--method", ",".join(METHODS),
    )  # fmt: skip

    def finished() -> dict[str, Row]:
        return folder.rows()

    first = start(*command)
    _wait(lambda: len(finished()) >= 2, [*cluster, first])
    cluster[1].kill()
    _wait(lambda: len(finished()) >= 5, [*cluster, first])
    first.kill()
    first.wait()
    before = finished()
    jobs = SPARSITIES * len(METHODS)
    assert 5 <= len(before) < jobs

    second = start(*command)
    assert second.wait(timeout=180) == 0
    after = finished()
    assert len(after) == jobs
    assert len({(row.goal, row.method) for row in after.values()}) == jobs
    assert {row.status for row in after.values()} == {"done"}
    assert all(row.latency_ms for row in after.values())
    assert {key: after[key].finished for key in before} == {key: row.finished for key, row in before.items()}
    assert len(list(folder.models.iterdir())) == jobs
    assert os.listdir(folder.path / "results") == []
    # Each worker got the model once, however many folds it made.
    contents = [list(place.rglob("lenet5.onnx")) for place in (tmp_path / "one", tmp_path / "two")]
    assert [len(found) for found in contents][1] == 1


@pytest.mark.long
def test_an_interrupt_ends_all_processes_with_one_word(tmp_path: Path) -> None:
    """As Ctrl-C: all processes get it; workers say nothing, and end with the client."""
    import psutil  # comes with dask.distributed

    folder = SweepFolder(tmp_path / "out")
    words = ["sweep", MODEL, "--out", folder.path, "--inputs", "noise", "--samples", 8, "--jobs", 2, "--seeds", 40]
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxfold", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
        # A shell lets what it starts in the background ignore interrupts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    _wait(folder.rows, [process])  # type: ignore[list-item]
    workers = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (130, "")
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == "interrupted"
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert alive == []
    assert all(row.status == "done" for row in folder.rows().values())


def test_an_interrupt_in_a_finaliser_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    ignored: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda raised: ignored.append(raised.exc_type))
    # A shell lets what it starts in the background ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with heard_interrupts() as check:
            check()
            Collected()
            with pytest.raises(KeyboardInterrupt):
                check()
        assert ignored == [KeyboardInterrupt]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
