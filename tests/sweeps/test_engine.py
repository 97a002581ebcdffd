"""Jobs on a cluster: every one ends once, what is shared is made once, and a sweep that ended goes on."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from onnxfold import api
from onnxfold.errors import ClusterLostError, ConfigError
from onnxfold.progress import silent
from onnxfold.sweeps import run as run_module
from onnxfold.sweeps.cluster import existing_cluster, local_cluster
from onnxfold.sweeps.job import Goal, Job, SweepRequest
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.run import Place, run_jobs, run_sweep
from onnxfold.sweeps.work import Failure, Outcome, Pieces
from tests.sweeps.rows import row

DATA = Path(api.__file__).parent / "data"
GOALS = tuple(Goal("sparsity", s) for s in (0.2, 0.4, 0.6))
MADE: list[str] = []


def _inputs(job: Job, pieces: Pieces) -> str:
    MADE.append(job.inputs_key)
    return job.inputs_key


def _work(job: Job, pieces: Pieces, inputs: Any) -> Outcome:
    """Fail one job, and return for the others whether everything arrived."""
    assert inputs == job.inputs_key
    if job.goal.value == 0.4:
        return Outcome(Failure("BudgetError", "too small").row(job))
    assert job.contents["model"].files == ()  # they are in the pieces
    with TemporaryDirectory() as store:
        put = job.contents["model"].put_into(Path(store), pieces["model"])
        arrived = hashlib.sha256(put.read_bytes()).hexdigest() == job.contents["model"].sha256
    return Outcome(row(key=job.key, setting=job.setting, notes=str(arrived)))


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Return a client of two workers in this process, which start at once."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as made,
    ):
        yield made


def test_every_job_ends_once_and_inputs_are_made_once_per_model_and_seed(client: Any) -> None:
    MADE.clear()
    jobs = SweepRequest((DATA / "lenet5.onnx", DATA / "lenet5_2x.onnx"), GOALS, ("fold-ls", "ifm"), 2).jobs()
    told: list[tuple[str, int, int]] = []
    taken: list[Outcome] = []
    run_jobs(
        client, jobs, lambda job, outcome: taken.append(outcome), lambda *a: told.append(a), work=_work, inputs=_inputs
    )
    assert sorted(outcome.row.key for outcome in taken) == sorted(job.key for job in jobs)
    assert {outcome.row.notes for outcome in taken if outcome.row.status == "done"} == {"True"}
    assert sum(outcome.row.status == "failed" for outcome in taken) == 8
    assert sorted(MADE) == sorted({job.inputs_key for job in jobs})
    assert len(MADE) == 4
    assert told[0] == ("fold", 0, 24)
    assert told[-1] == ("fold", 24, 24)
    (noted,) = (text for text, _, _ in told if text != "fold")  # of eight failures, the first
    assert noted.startswith("sweep goes on without ")
    assert noted.endswith(("seed 0: too small", "seed 1: too small"))


def test_a_scheduler_that_ends_is_said(client: Any) -> None:
    jobs = SweepRequest((DATA / "lenet5.onnx",), GOALS).jobs()

    class Gone:
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            made = client.submit(*args, **kwargs)
            if kwargs["key"].startswith("fold-"):
                made.cancel()
            return made

    with pytest.raises(ClusterLostError, match="start the sweep again"):
        run_jobs(Gone(), jobs, lambda *_: None, silent, work=_work, inputs=_inputs)  # type: ignore[arg-type]


class _KilledError(BaseException):
    """The end of the client."""


def test_a_sweep_that_was_killed_goes_on(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real folds: what is finished stays as it is, the rest is run, and a third run has nothing to do."""
    options = {"inputs": "noise", "samples": 8}
    request = SweepRequest((DATA / "lenet5.onnx",), GOALS, ("fold-naive",), options=options)
    folder, ran = SweepFolder(tmp_path / "sweep"), []

    class Here(Place):
        def opened(self, jobs: int) -> Any:
            from contextlib import nullcontext

            ran.append(jobs)
            return nullcontext(client)

    add = SweepFolder.add

    def add_and_die(self: SweepFolder, row: Any) -> None:
        if self.rows():
            raise _KilledError
        add(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(SweepFolder, "add", add_and_die)
        with pytest.raises(_KilledError):
            run_sweep(request, folder, Here())
    first = folder.rows()
    assert len(first) == 1
    rows = run_sweep(request, folder, Here())
    assert ran == [3, 2]
    assert len(rows) == len({r.key for r in rows}) == 3
    assert all(r.status == "done" and r.latency_ms and r.latency_ratio and r.latency_host for r in rows)
    for r in rows:
        assert r.file is not None
        assert (folder.path / r.file).stat().st_size > 1000
        assert r.key not in first or r.finished == first[r.key].finished
    assert os.listdir(folder.path / "results") == []
    again: list[Job] = []
    monkeypatch.setattr("onnxfold.sweeps.run.latency_of_two", None)  # no latency is left to measure
    monkeypatch.setattr(run_module, "run_jobs", lambda client, jobs, take, tell: again.extend(jobs))
    assert run_sweep(request, folder, Here()) == rows
    assert again == []
    run_sweep(request, folder, Here(), resume=False)
    assert len(again) == 3


def test_no_scheduler_is_a_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.sweeps.cluster._CONNECT_SECONDS", 1)
    for address in ("tcp://127.0.0.1:9", "nonsense"):
        with pytest.raises(ConfigError, match=f"no scheduler answers at '{address}'"), existing_cluster(address):
            pass


def test_a_scheduler_that_says_nothing_is_a_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfold.sweeps.cluster._CONNECT_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the system takes the connection
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no scheduler answers at '{address}'"), existing_cluster(address):
            pass


def _die(job: Job, pieces: Pieces, inputs: Any) -> Outcome:
    os._exit(1)


@pytest.mark.long
def test_a_job_that_kills_its_workers_ends_as_lost() -> None:
    """Two workers of a process each die of it; the third try of a job is left out."""
    jobs = SweepRequest((DATA / "lenet5.onnx",), GOALS[:1]).jobs()
    taken: list[Outcome] = []
    with local_cluster(1, retries=1) as client:
        run_jobs(client, jobs, lambda _, outcome: taken.append(outcome), silent, work=_die, inputs=_inputs)
    (outcome,) = taken
    assert (outcome.row.status, outcome.row.error_type) == ("lost", "KilledWorker")
    assert "2 workers died while it ran" in (outcome.row.error or "")
