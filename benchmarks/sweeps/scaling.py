"""The same sweep on one worker of this machine and on two; and on many simulated ones, with the durations of these."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.sweeps.grid import METHODS, request
from benchmarks.sweeps.timed import (
    RECORDED,
    Recorded,
    Timed,
    simulated_inputs,
    simulated_work,
    timed_inputs,
    timed_work,
)
from onnxfold.progress import silent
from onnxfold.sweeps.cluster import local_cluster
from onnxfold.sweeps.content import content_of
from onnxfold.sweeps.job import MODEL, Goal, Job
from onnxfold.sweeps.run import run_jobs

#: The simulated sweep.
_MODELS, _SPARSITIES, _SEEDS = 16, 10, 4


@dataclass(frozen=True)
class Scaling:
    """One run.

    Parameters
    ----------
    workers, jobs : int
        How many.
    seconds : float
        From the first task that is sent to the last result, start of the workers aside.
    work_seconds : float
        Seconds that workers spent in jobs and inputs, added up.
    cpu_seconds : float
        Those in which jobs computed; of simulated ones, those of the client, the scheduler and the workers.
    load : float
        What else ran on the machine: its load average at the start.
    durations, input_durations : tuple of float
        Seconds of every job, and of all inputs.
    """

    workers: int
    jobs: int
    seconds: float
    work_seconds: float
    cpu_seconds: float = 0.0
    load: float = 0.0
    durations: tuple[float, ...] = field(default=(), repr=False)
    input_durations: tuple[float, ...] = field(default=(), repr=False)

    @property
    def efficiency(self) -> float:
        """The part of the workers' time that was spent in work."""
        return self.work_seconds / (self.workers * self.seconds)


def on_workers(workers: int, sparsities: str) -> Scaling:
    """Run real folds on workers of this machine."""
    jobs, taken = request(sparsities).jobs(), list[Timed]()
    load = os.getloadavg()[0]
    with local_cluster(workers) as client:
        client.wait_for_workers(workers)
        start = time.perf_counter()
        run_jobs(client, jobs, lambda _, done: taken.append(done), silent, work=timed_work, inputs=timed_inputs)
        seconds = time.perf_counter() - start
    assert {done.row.status for done in taken} == {"done"}
    inputs = tuple({done.input_seconds for done in taken})
    durations = tuple(done.seconds for done in taken)
    cpu = sum(done.cpu_seconds for done in taken)
    return Scaling(workers, len(jobs), seconds, sum(durations) + sum(inputs), cpu, load, durations, inputs)


def simulated(
    workers: int, durations: Sequence[float], inputs: Sequence[float], folder: Path, *, speed: float = 1.0
) -> Scaling:
    """Run the engine and the scheduler as they are, with workers that only wait.

    Parameters
    ----------
    workers : int
        How many; threads of this process.
    durations, inputs : sequence of float
        Recorded seconds of jobs and of inputs, which are drawn from.
    folder : Path
        For files that stand for models.
    speed : float
        Factor by which everything takes less time.
    """
    from distributed import Client, LocalCluster

    jobs, recorded = _jobs(folder), Recorded(tuple(durations), tuple(inputs), speed)
    RECORDED.append(recorded)
    work = sum(map(recorded.of, jobs)) + sum(map(recorded.of_inputs, {job.inputs_key: job for job in jobs}.values()))
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=False, memory_limit=0, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        start, cpu, load = time.perf_counter(), time.process_time(), os.getloadavg()[0]
        run_jobs(client, jobs, lambda *_: None, silent, work=simulated_work, inputs=simulated_inputs)
        taken, cpu = time.perf_counter() - start, time.process_time() - cpu
    return Scaling(workers, len(jobs), taken, work, cpu, load)


def _jobs(folder: Path) -> list[Job]:
    made = []
    for model in range(_MODELS):
        path = folder / f"model{model}.onnx"
        path.write_bytes(os.urandom(1 << 16))
        content = content_of(path)
        made += [
            Job(str(path), Goal("sparsity", (1 + step) / (1 + _SPARSITIES)), method, seed, {MODEL: content})
            for seed in range(_SEEDS) for method in METHODS for step in range(_SPARSITIES)
        ]  # fmt: skip
    return made


def quartiles(values: Sequence[float]) -> str:
    """Return the quartiles as text."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{low:.1f}, {middle:.1f} and {high:.1f} s"
