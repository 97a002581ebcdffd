"""Outputs of every network in every runtime."""

from collections.abc import Iterator
from pathlib import Path

from benchmarks.export.networks import fold_half, networks
from benchmarks.export.page import result_cell
from benchmarks.export.runtimes import RUNTIMES, Row, run_jobs, write_job
from onnxfold.errors import OnnxFoldError


def parity(folder: Path, pythons: dict[str, Path], only: list[str] | None) -> Iterator[Row]:
    """Yield a row per network and form with the differences in every runtime."""
    for name, write in networks(only).items():
        rows, jobs = [], []
        dense = write(folder)
        for form in ("dense", "folded"):
            row = Row(name, form)
            rows.append(row)
            try:
                path = dense if form == "dense" else fold_half(dense, folder)
                jobs.append((row, write_job(row, path, folder)))
            except OnnxFoldError as error:
                row.refused = str(error)
        for runtime, python in pythons.items():
            for (row, _), result in zip(jobs, run_jobs(python, runtime, [j for _, j in jobs], folder), strict=True):
                row.results[runtime] = result
        for row in rows:
            print(
                f"{row.name:28} {row.form:7} {row.refused[:90]} " + " ".join(result_cell(row, r) for r in RUNTIMES),
                flush=True,
            )
        yield from rows
