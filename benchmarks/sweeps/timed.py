"""The work of a sweep with its durations, and the same durations without the work."""

import random
import time
from dataclasses import dataclass
from typing import Any

from onnxfold.sweeps.job import Job
from onnxfold.sweeps.work import Failure, Outcome, Pieces, make_inputs, run_job


@dataclass(frozen=True)
class TimedInputs:
    """Inputs, and the seconds that they took."""

    inputs: Any
    seconds: float


@dataclass(frozen=True)
class Timed(Outcome):
    """An outcome, the seconds that it took, those of computing, and those of its inputs, which jobs share."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    input_seconds: float = 0.0


def timed_inputs(job: Job, pieces: Pieces) -> TimedInputs:
    """Make inputs."""
    start = time.perf_counter()
    made = make_inputs(job, pieces)
    return TimedInputs(made, time.perf_counter() - start)


def timed_work(job: Job, pieces: Pieces, inputs: TimedInputs) -> Timed:
    """Fold and measure."""
    start, cpu = time.perf_counter(), time.process_time()
    done = run_job(job, pieces, inputs.inputs)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return Timed(done.row, done.files, done.is_folder, seconds, cpu_seconds, inputs.seconds)


@dataclass(frozen=True)
class Recorded:
    """Durations that simulated work takes: of each job, one that its key draws.

    Parameters
    ----------
    jobs, inputs : tuple of float
        Recorded seconds.
    speed : float
        Factor by which everything takes less time.
    """

    jobs: tuple[float, ...]
    inputs: tuple[float, ...]
    speed: float = 1.0

    def of(self, job: Job) -> float:
        """Return the seconds of a job."""
        return random.Random(job.key).choice(self.jobs) / self.speed

    def of_inputs(self, job: Job) -> float:
        """Return the seconds of its inputs."""
        return random.Random(job.inputs_key).choice(self.inputs) / self.speed


#: What simulated workers read, which are threads of this process: in a task, it would be sent a thousand times.
RECORDED: list[Recorded] = []


def simulated_inputs(job: Job, pieces: Pieces) -> None:
    """Wait as long as inputs took."""
    time.sleep(RECORDED[-1].of_inputs(job))


def simulated_work(job: Job, pieces: Pieces, inputs: None) -> Outcome:
    """Wait as long as a job took."""
    time.sleep(RECORDED[-1].of(job))
    return Outcome(Failure("Simulated", "nothing was folded").row(job))
