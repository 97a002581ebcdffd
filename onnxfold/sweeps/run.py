"""A sweep from the request to the rows: what is missing is run, then latencies, then one file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfold.progress import NOTED, Progress, silent
from onnxfold.sweeps.cluster import (
    ENCRYPTED,
    RETRIES,
    UNPROTECTED,
    default_jobs,
    describe_cluster,
    existing_cluster,
    local_cluster,
)
from onnxfold.sweeps.engine import run_jobs
from onnxfold.sweeps.grid import SweepRequest
from onnxfold.sweeps.job import Job
from onnxfold.sweeps.latency import is_due, measure_latencies
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.row import LOST, Row
from onnxfold.sweeps.work import Outcome

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class Place:
    """Where jobs run."""

    jobs: int | None = None  # workers of this machine; by default one per core
    scheduler: str | None = None  # address of a scheduler instead
    #: How often a job is given to another worker of this machine when its worker dies; a scheduler decides for itself.
    retries: int = RETRIES
    memory: int | None = None  # bytes that a job of this machine may take; by default its share of the limit of memory

    @contextmanager
    def opened(self, jobs: int) -> Iterator["Client"]:
        """Connect, with no more workers of this machine than there are jobs."""
        if self.scheduler is not None:
            with existing_cluster(self.scheduler) as client:
                yield client
        else:
            with local_cluster(min(self.jobs or default_jobs(), jobs), self.retries, self.memory) as client:
                yield client


def run_sweep(
    request: SweepRequest,
    folder: SweepFolder,
    place: Place,
    tell: Progress = silent,
    *,
    resume: bool = True,
    measures_latency: bool = True,
    threads: int = 1,
) -> list[Row]:
    """Run all jobs of a request that have no row yet; return the rows of the request."""
    jobs = request.jobs()
    with folder.opened():
        rows = folder.rows()
        missing = [job for job in jobs if not (resume and job.key in rows and rows[job.key].status != LOST)]
        tell(f"{NOTED} of {len(jobs)} jobs, {len(jobs) - len(missing)} of them finished before", 0, 0)
        if missing:
            with place.opened(len(missing)) as client:
                tell(f"{NOTED} on {describe_cluster(client)}", 0, 0)
                if not client.scheduler.address.startswith(ENCRYPTED):
                    tell(f"{NOTED} trusts its network: {UNPROTECTED}", 0, 0)
                run_jobs(client, missing, lambda job, outcome: _take(folder, job, outcome), tell)
        wanted = {job.key: job for job in jobs}
        if measures_latency:  # the workers of this machine have ended
            due = [row for key, row in folder.rows().items() if key in wanted and is_due(row)]
            originals = {key: Path(job.model) for key, job in wanted.items()}
            shapes = request.options.get("input_shapes")
            measure_latencies(due, originals, folder.path, folder.add, tell, threads=threads, input_shapes=shapes)
        return [row for row in folder.compact() if row.key in wanted]


def _take(folder: SweepFolder, job: Job, outcome: Outcome) -> None:
    """Write a folded model, then the part of its job."""
    row = outcome.row
    if outcome.files and row.file is not None:
        row = replace(row, file=folder.add_model(row.file, outcome.files, is_folder=outcome.is_folder))
    folder.add(row)
