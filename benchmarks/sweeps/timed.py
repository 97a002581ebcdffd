"""The work of a sweep with its durations, and the same durations without the work."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnxfold.sweeps.job import Job
from onnxfold.sweeps.work import Outcome, Pieces, make_inputs, run_job


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
class Replay:
    """Durations by key, that nothing is done in.

    Parameters
    ----------
    seconds : mapping of str to float
        By key of a job, and by key of inputs.
    outcome : Outcome
        What every job returns.
    """

    seconds: Mapping[str, float]
    outcome: Outcome

    def inputs(self, job: Job, pieces: Pieces) -> float:
        """Wait as long as inputs took."""
        time.sleep(self.seconds[job.inputs_key])
        return self.seconds[job.inputs_key]

    def work(self, job: Job, pieces: Pieces, inputs: float) -> Outcome:
        """Wait as long as a job took."""
        time.sleep(self.seconds[job.key])
        return self.outcome
