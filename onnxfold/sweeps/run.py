"""A sweep from the request to the rows: what is missing is run, then latencies, then one file.

A job is a task that depends on the pieces of what it reads and on the inputs of its model. Dask sends such a dependency
once to each worker that needs it, from whoever has it, and makes it again where its worker is gone. The client writes
what comes back, so workers need no file system in common.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import ClusterLostError, NotMeasurableError, OnnxFoldError
from onnxfold.folders import model_file
from onnxfold.graph.files.load import load
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.latency.interleaved import latency_of_two
from onnxfold.progress import NOTED, Progress, silent
from onnxfold.sweeps import cluster
from onnxfold.sweeps.answers.pick import describe_row
from onnxfold.sweeps.content import Content
from onnxfold.sweeps.job import Job, SweepRequest
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.row import DONE, LOST, Row
from onnxfold.sweeps.work import Failure, Outcome, make_inputs, run_job

if TYPE_CHECKING:
    from distributed import Client, Future


#: What the progress calls the work.
FOLDS, LATENCIES = "fold", "latency"


@dataclass(frozen=True)
class Place:
    """Where jobs run."""

    jobs: int | None = None  # workers of this machine; by default one per core
    scheduler: str | None = None  # address of a scheduler instead
    #: How often a job is given to another worker of this machine when its worker dies; a scheduler decides for itself.
    retries: int = cluster.RETRIES
    memory: int | None = None  # bytes that a job of this machine may take; by default its share of the limit of memory

    def opened(self, jobs: int) -> AbstractContextManager["Client"]:
        """Connect, with no more workers of this machine than there are jobs."""
        if self.scheduler is not None:
            return cluster.existing_cluster(self.scheduler)
        return cluster.local_cluster(min(self.jobs or cluster.default_jobs(), jobs), self.retries, self.memory)


def run_sweep(
    request: SweepRequest, folder: SweepFolder, place: Place, tell: Progress = silent, *, resume: bool = True,
    latency_threads: int | None = 1,
) -> list[Row]:  # fmt: skip
    """Run all jobs of a request that have no row yet, then time models with these threads; return the rows."""
    jobs = request.jobs()
    with folder.opened():
        rows = folder.rows()
        missing = [job for job in jobs if not (resume and job.key in rows and rows[job.key].status != LOST)]
        tell(f"{NOTED} of {len(jobs)} jobs, {len(jobs) - len(missing)} of them finished before", 0, 0)
        if missing:
            with place.opened(len(missing)) as client:
                workers = len(client.scheduler_info(n_workers=-1)["workers"])
                count = "1 worker" if workers == 1 else f"{workers} workers"
                tell(f"{NOTED} on {count}; dashboard: {client.dashboard_link}", 0, 0)
                if not client.scheduler.address.startswith(cluster.ENCRYPTED):
                    tell(f"{NOTED} trusts its network: {cluster.UNPROTECTED}", 0, 0)
                run_jobs(client, missing, partial(_take, folder), tell)
        wanted = {job.key: job for job in jobs}
        if latency_threads is not None:  # the workers of this machine have ended
            due = [row for key, row in folder.rows().items() if key in wanted and is_due(row)]
            originals = {key: Path(job.model) for key, job in wanted.items()}
            shapes = request.options.get("input_shapes")
            timed = measure_latencies(due, originals, folder.path, tell, threads=latency_threads, input_shapes=shapes)
            for row in timed:
                folder.add(row)
        return [row for row in folder.compact() if row.key in wanted]


def run_jobs(
    client: "Client", jobs: Sequence[Job], take: Callable[[Job, Outcome], None], tell: Progress, *,
    work: Callable[..., Outcome] = run_job, inputs: Callable[..., Any] = make_inputs,
) -> None:  # fmt: skip
    """Run jobs; every one ends in an outcome, in whatever order."""
    from distributed import as_completed

    sent: dict[str, list[Future]] = {}
    shared: dict[str, Future] = {}
    futures = {}
    for job in jobs:
        pieces = {role: _send(client, content, sent) for role, content in job.contents.items()}
        made = None
        if job.needs_inputs:
            key = f"onnxfold-inputs-{job.inputs_key}"
            made = shared.get(key) or client.submit(inputs, job.sent, pieces, key=key)
            shared[key] = made
        futures[client.submit(work, job.sent, pieces, made, key=f"{FOLDS}-{job.key}")] = job
    tell(FOLDS, 0, len(jobs))
    failed = 0
    with cluster.heard_interrupts() as check:
        for done, future in enumerate(as_completed(futures), start=1):
            outcome = _outcome(future, futures[future])
            take(futures[future], outcome)
            future.release()
            if outcome.row.status != DONE:
                if not failed:
                    tell(f"{NOTED} goes on without {describe_row(outcome.row)}: {outcome.row.error}", 0, 0)
                failed += 1
            tell(FOLDS, done, len(jobs))
            check()


def _send(client: "Client", content: Content, sent: dict[str, list["Future"]]) -> list["Future"]:
    """Return the pieces of a content as they lie on the cluster."""
    if content.digest not in sent:
        name = f"onnxfold-content-{content.digest}"
        sent[content.digest] = [
            client.submit(bytes, piece, key=f"{name}-{number}") for number, piece in enumerate(content.pieces())
        ]
    return sent[content.digest]


def _outcome(future: "Future", job: Job) -> Outcome:
    """Return the outcome of a job, also where no worker could end it."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker

    try:
        outcome: Outcome = future.result()
    except KilledWorker as error:
        times = "worker died" if error.allowed_failures == 0 else f"{error.allowed_failures + 1} workers died"
        message = f"{times} while it ran, the last one at {error.last_worker.address}: out of memory, or stopped"
        return Outcome(Failure("KilledWorker", message, is_lost=True).row(job))
    except (CancelledError, OSError) as error:
        raise ClusterLostError(
            f"the scheduler is gone ({type(error).__name__}): what was finished is kept; start the sweep again"
        ) from None
    return outcome


def _take(folder: SweepFolder, job: Job, outcome: Outcome) -> None:
    """Write a folded model, then the part of its job."""
    row = outcome.row
    if outcome.files and row.file is not None:
        row = replace(row, file=folder.add_model(row.file, outcome.files, is_folder=outcome.is_folder))
    folder.add(row)


def is_due(row: Row) -> bool:
    """Whether nobody has tried to measure the latency of a row."""
    return row.status == DONE and row.latency_host is None and row.file is not None


def measure_latencies(
    rows: Sequence[Row], originals: Mapping[str, Path], folder: Path, tell: Progress, *,
    threads: int = 1, input_shapes: Mapping[str, Any] | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Time every folded model beside its original, in turn, with nothing else to do here."""
    for done, row in enumerate(rows):
        tell(LATENCIES, done, len(rows))
        assert row.file is not None
        try:
            models = [model_file(path) for path in (originals[row.key], folder / row.file)]
            before, after = ((model, load(model, input_shapes)) for model in models)
            feeds = partial(noise_inputs, samples=1, seed=row.seed, view=after[1])
            timing = latency_of_two(before, after, feeds, threads=threads)
            if timing is None:
                raise NotMeasurableError("a model does not run in its own type, or may never end")
            yield replace(
                row, latency_ms_before=1e3 * timing.before_s, latency_ms=1e3 * timing.after_s,
                latency_ratio=timing.ratio, latency_spread=timing.spread,
                latency_host=f"{platform.node()}, {timing.how}",
            )  # fmt: skip
        except OnnxFoldError as error:
            notes = "; ".join(filter(None, (row.notes, f"latency was not measured: {error}")))
            yield replace(row, notes=notes, latency_host=platform.node())
