"""Jobs on a cluster: what is sent, what comes back, and what happens where a worker dies.

A job is a task that depends on the pieces of what it reads and on the inputs of its model. Dask sends such a dependency
once to each worker that needs it, from whoever has it, and makes it again where its worker is gone. The client writes
what comes back, so workers need no file system in common.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onnxfold.errors import ClusterLostError
from onnxfold.progress import NOTED, Progress
from onnxfold.sweeps.answers.pick import describe_row
from onnxfold.sweeps.content import Content
from onnxfold.sweeps.job import Job
from onnxfold.sweeps.row import DONE
from onnxfold.sweeps.work import Failure, Outcome, make_inputs, run_job

if TYPE_CHECKING:
    from distributed import Client, Future

#: What the progress calls the work.
FOLDS = "fold"


def run_jobs(
    client: "Client",
    jobs: Sequence[Job],
    take: Callable[[Job, Outcome], None],
    tell: Progress,
    *,
    work: Callable[..., Outcome] = run_job,
    inputs: Callable[..., Any] = make_inputs,
) -> None:
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
    for done, future in enumerate(as_completed(futures), start=1):
        outcome = _outcome(future, futures[future])
        take(futures[future], outcome)
        future.release()
        if outcome.row.status != DONE:
            if not failed:
                tell(f"{NOTED} goes on without {describe_row(outcome.row)}: {outcome.row.error}", 0, 0)
            failed += 1
        tell(FOLDS, done, len(jobs))


def _send(client: "Client", content: Content, sent: dict[str, list["Future"]]) -> list["Future"]:
    """Return the pieces of a content as they lie on the cluster."""
    if content.digest not in sent:
        name = f"onnxfold-content-{content.digest}"
        sent[content.digest] = [
            client.submit(_same_bytes, piece, key=f"{name}-{number}") for number, piece in enumerate(content.pieces())
        ]
    return sent[content.digest]


def _same_bytes(piece: bytes) -> bytes:
    return piece


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
