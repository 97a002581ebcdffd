"""The last phase of a sweep: latencies of all folded models, one after the other, with nothing else to do here."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onnxfold.errors import OnnxFoldError
from onnxfold.folders import model_file
from onnxfold.graph.files.load import ModelLike, load
from onnxfold.graph.run.session import Feeds, InputInfo
from onnxfold.inputs.noise import noise_inputs
from onnxfold.latency.two_models import latency_of_two
from onnxfold.progress import Progress
from onnxfold.sweeps.row import DONE, Row

#: What the progress calls the work.
LATENCIES = "latency"


def is_due(row: Row) -> bool:
    """Whether nobody has tried to measure the latency of a row."""
    return row.status == DONE and row.latency_host is None and row.file is not None


def measure_latencies(
    rows: Sequence[Row],
    originals: Mapping[str, Path],
    folder: Path,
    take: Callable[[Row], None],
    tell: Progress,
    *,
    threads: int = 1,
    input_shapes: Mapping[str, Any] | None = None,
) -> None:
    """Time every folded model beside its original, in turn."""
    for done, row in enumerate(rows):
        tell(LATENCIES, done, len(rows))
        assert row.file is not None
        try:
            take(_time_row(row, originals[row.key], folder / row.file, threads, input_shapes))
        except OnnxFoldError as error:
            take(_mark_untimed(row, str(error)))


def _time_row(row: Row, original: Path, folded: Path, threads: int, input_shapes: Mapping[str, Any] | None) -> Row:
    before, after = (_open_model(path, input_shapes) for path in (original, folded))

    def feeds(infos: list[InputInfo]) -> Feeds:
        return noise_inputs(infos, samples=1, seed=row.seed, view=after[1])

    timing = latency_of_two(before, after, feeds, threads=threads)
    if timing is None:
        return _mark_untimed(row, "a model does not run in its own type, or may never end")
    return replace(
        row, latency_ms_before=1e3 * timing.before_s, latency_ms=1e3 * timing.after_s, latency_ratio=timing.ratio,
        latency_spread=timing.spread, latency_host=f"{platform.node()}, {timing.how}",
    )  # fmt: skip


def _mark_untimed(row: Row, why: str) -> Row:
    notes = "; ".join(filter(None, (row.notes, f"latency was not measured: {why}")))
    return replace(row, notes=notes, latency_host=platform.node())


def _open_model(path: Path, input_shapes: Mapping[str, Any] | None) -> tuple[ModelLike, Any]:
    model = model_file(path)
    return model, load(model, input_shapes)
