"""The page of the measured sweeps."""

from collections.abc import Sequence
from typing import Any

from benchmarks.sweeps.scaling import Scaling, quartiles


def render(results: dict[str, Any]) -> str:
    """Return the page of the parts that were run."""
    parts = [
        "# Sweeps\n\nWritten by `python -m benchmarks.sweeps`, on a machine that others used at the same time: "
        f"{results.get('machine', 'unknown')}.\n"
    ]
    if "killed" in results:
        parts.append(_killed(results["killed"]))
    scaling = [Scaling(**row) for row in results.get("scaling", ())]
    if scaling:
        parts.append(_scaling(scaling))
    if "simulated" in results:
        parts.append(_simulated([Scaling(**row) for row in results["simulated"]], scaling[0]))
    return "\n".join(parts)


def _killed(found: dict[str, Any]) -> str:
    return f"""## Killed twice

2 models x 8 sparsities x 3 methods x 2 seeds on two workers: {found["jobs"]} jobs. At {found["at_worker"]} rows a
worker was killed, at {found["at_client"]} the client; {found["left_workers"]} workers outlived it. The same command
went on.

| rows at the end | different jobs | finished | made again, of those at the kill | folded models |
|---:|---:|---:|---:|---:|
| {found["rows"]} | {found["settings"]} | {found["done"]} | {found["repeated"]} | {found["models"]} |

A third run found nothing to do, and took {found["third_s"]:.1f} s.
"""


def _scaling(rows: list[Scaling]) -> str:
    cells = [
        (
            f"{row.workers}", f"{row.jobs}", f"{row.seconds:.1f}", f"{rows[0].seconds / row.seconds:.2f}",
            f"{row.work_seconds:.1f}", f"{row.efficiency:.1%}", f"{row.cpu_seconds:.1f}", f"{row.load:.1f}",
        )
        for row in rows
    ]  # fmt: skip
    head = ("workers", "jobs", "seconds", "speed-up", "seconds of work", "efficiency", "CPU seconds of jobs", "load")
    return f"""## One worker and two

Efficiency is the part of the workers' time that is spent in work: in jobs, and in making their inputs. The rest is
sending, waiting, and the end, when there are fewer jobs than workers. Start of the workers is not counted. Load is the
machine's load average at the start.

{_table(head, cells)}
"""


def _simulated(rows: list[Scaling], recorded: Scaling) -> str:
    cells = [
        (
            f"{row.workers}", f"{row.jobs}", f"{row.seconds:.1f}", f"{row.work_seconds / row.workers:.1f}",
            f"{row.efficiency:.1%}", _per_job(row), f"{row.load:.1f}",
        )
        for row in rows
    ]  # fmt: skip
    return f"""## Simulated workers

The engine and dask's scheduler as they are; the workers, threads of one process, wait as long as jobs took on one
worker above (quartiles {quartiles(recorded.durations)}; inputs {quartiles(recorded.input_durations)}). 16 models, 10
sparsities, 3 methods and 4 seeds; the inputs of a model and a seed come before its folds. CPU time is that of the
client, the scheduler and all workers together: unlike the seconds, it does not depend on what else runs. Where others
take the cores, this one process gets too little of them, and the simulated workers wait for it.

{_table(("workers", "jobs", "seconds", "at best", "efficiency", "CPU ms per job", "load"), cells)}
"""


def _per_job(row: Scaling) -> str:
    return f"{1e3 * row.cpu_seconds / row.jobs:.1f}" if row.cpu_seconds else "not measured"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
