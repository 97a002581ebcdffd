"""The work of a worker: inputs of a model, and one fold with everything that is measured of it.

Functions here run in other processes and on other machines. They return what went wrong as a value: an error that only
one job has must not look like the end of its worker.
"""

import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onnxfold.config import NO_REFINEMENT
from onnxfold.folders import folder_of
from onnxfold.folding.fold_result import FoldResult
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.html_report import command_line
from onnxfold.machine.memory import DEFAULT_PART, memory_limit
from onnxfold.sweeps.job import DATA, MODEL, PATHS, Job, versions
from onnxfold.sweeps.row import DONE, FAILED, LOST, Row

#: Pieces of contents, by role.
Pieces = Mapping[str, Sequence[bytes]]


@dataclass(frozen=True)
class Failure:
    """An error as a value: the name of its type, its message, and whether another worker may do better."""

    kind: str
    message: str
    is_lost: bool = False

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return the failure that an error stands for."""
        return cls(type(error).__name__, str(error) or type(error).__name__)

    def row(self, job: Job) -> Row:
        """Return the row of a job that it ended."""
        status = LOST if self.is_lost else FAILED
        return replace(_blank(job), status=status, error_type=self.kind, error=self.message)


@dataclass(frozen=True)
class Outcome:
    """A finished job."""

    row: Row
    #: The folded model: its file and those beside it, or what is in its folder; empty where the job failed.
    files: Mapping[str, bytes] = field(default_factory=dict)
    is_folder: bool = False  # whether the model is a folder


def make_inputs(job: Job, pieces: Pieces, store: str | None = None) -> ChosenInputs | Failure:
    """Return the inputs that this job runs the network on, as does every other job with the same inputs."""
    from onnxfold.folding.inputs.choose_inputs import prepare_inputs

    try:
        with _worker_limits():
            paths = _place_contents(job, pieces, store)
            return prepare_inputs(paths[MODEL], job.config(paths))
    except Exception as error:
        return Failure.of(error)


def run_job(job: Job, pieces: Pieces, inputs: ChosenInputs | Failure | None, store: str | None = None) -> Outcome:
    """Fold and measure; see :func:`make_inputs`."""
    if dict(job.versions) != versions():
        return Outcome(_other_versions(job).row(job))
    if isinstance(inputs, Failure):
        return Outcome(inputs.row(job))
    try:
        with _worker_limits():
            return _fold_job(job, _place_contents(job, pieces, store), inputs)
    except Exception as error:
        return Outcome(Failure.of(error).row(job))


def _fold_job(job: Job, paths: Mapping[str, Path], inputs: ChosenInputs | None) -> Outcome:
    from onnxfold.api import fold_request
    from onnxfold.sweeps.measures import all_measures

    result = fold_request(paths[MODEL], job.config(paths), run_on=inputs, measures_latency=False)
    columns = all_measures(result, paths[MODEL], paths.get(DATA), job.options)
    is_folder = folder_of(paths[MODEL]) is not None
    name = job.name + ("" if is_folder else ".onnx")
    row = replace(_blank(job), status=DONE, command=_command(job, result, name), file=name, **columns)
    return Outcome(row, _files(result, name), is_folder)


def _files(result: FoldResult, name: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        saved = result.save(Path(folder) / name)
        root = saved if saved.is_dir() else saved.parent
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _command(job: Job, result: FoldResult, name: str) -> str:
    """Return the command that makes the model from the files where the sweep was started."""
    files = {role: str(Path(c.root) / c.main) for role, c in job.contents.items() if role in PATHS}
    return command_line(replace(result.report, model=job.model, config={**result.report.config, **files}), name)


def _blank(job: Job) -> Row:
    """Return the row of a job of which nothing is known but who ran it, and when."""
    return Row(
        key=job.key, setting=job.setting, status=FAILED, model=job.model, model_sha256=job.contents[MODEL].sha256,
        goal=str(job.goal), method=job.method, seed=job.seed, options=json.dumps(dict(job.options), default=str),
        refine=job.options.get("refine", NO_REFINEMENT), worker=platform.node(),
        finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        versions=json.dumps(dict(job.versions)),
    )  # fmt: skip


def _other_versions(job: Job) -> Failure:
    own = versions()
    other = [f"{name} {own[name] or 'none'} instead of {job.versions[name] or 'none'}" for name in own
             if own[name] != job.versions.get(name)]  # fmt: skip
    return Failure("VersionError", f"the worker {platform.node()} has {', '.join(other)}: install the same", True)


def _place_contents(job: Job, pieces: Pieces, store: str | None) -> dict[str, Path]:
    if store is None:  # a folder that lives as long as this worker
        from distributed import get_worker

        store = str(Path(get_worker().local_directory) / "onnxfold-contents")
    root = Path(store)
    return {role: content.put_into(root, pieces[role]) for role, content in job.contents.items()}


def _worker_limits() -> Any:
    """Let a job take one thread, and no more memory than its worker has."""
    os.environ["OMP_NUM_THREADS"] = "1"
    limit: int | None = None
    try:
        from distributed import get_worker

        worker = get_worker()
        own = (worker.memory_manager.memory_limit or 0) / max(worker.state.nthreads, 1)
        limit = int(DEFAULT_PART * own) or None
    except (ImportError, ValueError):  # no worker: the caller's limit holds
        pass
    return memory_limit(limit)
