"""Measurement of architectures in separate processes, with a limit of processor time per form."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

import torch

from benchmarks.coverage.cases import TABLE
from benchmarks.coverage.measure import measure
from benchmarks.coverage.row import Row

#: Seconds of processor time: other work on the machine changes no row.
CPU_LIMIT = 180
#: Seconds on the clock, for what waits for ever.
TIME_LIMIT = 3600.0


def _work(name: str, forms: list[str], pipe: Connection) -> None:
    torch.set_num_threads(1)
    # Messages that torch's exporters write past Python's streams.
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    with tempfile.TemporaryDirectory() as folder:
        built = TABLE[name][0]()
        for form in forms:
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_LIMIT, resource.RLIM_INFINITY))
            pipe.send(measure(name, form, built, Path(folder)))
    pipe.close()


@dataclass
class _Job:
    name: str
    process: BaseProcess
    forms: list[str]
    deadline: float


def run(names: list[str], forms: list[str], jobs: int = 1) -> Iterator[Row]:
    """Yield rows as they are done; a form that takes too long or kills its process is a row with an error."""
    # fork: every process works with the library as it was imported here, and starts at once.
    context = multiprocessing.get_context("fork")
    waiting, active = list(names), dict[Connection, _Job]()
    while waiting or active:
        while waiting and len(active) < jobs:
            name = waiting.pop(0)
            mine, theirs = context.Pipe(duplex=False)
            wanted = [form for form in forms if form in TABLE[name][1]]
            process = context.Process(target=_work, args=(name, wanted, theirs), daemon=True)
            process.start()
            theirs.close()
            active[mine] = _Job(name, process, wanted, time.monotonic() + TIME_LIMIT)
        ready = cast(list[Connection], wait(list(active), timeout=1.0))
        for pipe in list(active):
            job = active[pipe]
            problem = ""
            if pipe in ready:
                try:
                    row = cast(Row, pipe.recv())
                    job.forms.remove(row.form)
                    job.deadline = time.monotonic() + TIME_LIMIT
                    yield row
                except EOFError:
                    job.process.join()
                    problem = _why(job.process.exitcode)
            elif time.monotonic() > job.deadline:
                problem = f"no result within {TIME_LIMIT:g} s on the clock"
            if problem:
                job.process.kill()
                del active[pipe]
                yield from (Row(job.name, form, errors={"export": problem}) for form in job.forms)


def _why(code: int | None) -> str:
    """Return why a process ended."""
    if code == -signal.SIGXCPU:
        return f"no result within {CPU_LIMIT} s of processor time"
    return f"the process ended with code {code}"
