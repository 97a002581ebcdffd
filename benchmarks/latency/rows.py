"""Measurements of the latency page: folds at defaults and by weights alone, and folds to a limit of latency."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxfold
from benchmarks.latency.networks import Network
from benchmarks.latency.timing import interleaved
from onnxfold.errors import OnnxFoldError
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session, in_batches
from onnxfold.latency.interleaved import Timing

SPARSITIES = (0.3, 0.5, 0.7)
#: Asked of a fold by latency.
LIMIT = "0.7x"
ROUNDS = 31
#: A run is repeated while the dense network's latency varies by more.
_MOST_SPREAD, _ATTEMPTS = 0.05, 3
_BATCH = 100

#: The choices of widths that are compared: by name, options.
CHOICES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "weights alone": {"objective": "weights", "round_to": 1},
}

Row = dict[str, Any]
Say = Callable[[str], None]


def measure_network(
    network: Network, folders: Sequence[Path], data: Path | None, work: Path, options: dict[str, Any], say: Say
) -> dict[str, Any]:
    """Return everything that the page says of a network, as plain values.

    Parameters
    ----------
    network : Network
        The network.
    folders : sequence of Path
        Where trained files are.
    data : Path, optional
        Where test images are; without it accuracy is not measured.
    work : Path
        Where files are written.
    options : dict
        Further options of every fold, such as the kind of inputs.
    say : callable
        Takes a line on what was done.
    """
    path, trained = network.path(folders, work)
    dense = onnx.load(path)
    rows: list[Row] = [{"choice": "dense", "asked": 0.0}]
    models = [dense]
    for sparsity in SPARSITIES:
        for choice, more in CHOICES.items():
            start = time.perf_counter()
            result = onnxfold.fold(path, sparsity, verify=False, **options, **more)
            seconds = time.perf_counter() - start
            before, macs = result.report.before.macs, result.report.after.macs
            rows.append(
                {
                    "choice": choice, "asked": sparsity, "removed": result.report.sparsity, "seconds": seconds,
                    "macs_ratio": macs / before if macs and before else None, "notes": result.report.notes,
                }
            )  # fmt: skip
            models.append(result.model)
            say(f"{network.name}, {sparsity:.0%}, {choice}: folded in {seconds:.0f} s")
    _time(rows, models)
    limited = _limited(path, options, say)
    found = {"name": network.name, "file": path.stem, "trained": trained, "rows": rows, "limited": limited}
    if trained and network.images is not None and data is not None:
        images, labels = network.images(data)
        for row, model in zip(rows, models, strict=True):
            row["accuracy"] = accuracy(model, images, labels)
        found["images"] = len(labels)
        say(f"{network.name}: accuracy of {len(models)} models on {len(labels)} images")
    return found


def _time(rows: list[Row], models: Sequence[onnx.ModelProto]) -> None:
    timing = _steady(models)
    for i, row in enumerate(rows):
        row["ms"], row["ratio"], row["spread"] = timing.median(i) * 1e3, timing.ratio(i), timing.ratio_spread(i)
    rows[0]["spread"] = timing.spread()


def _steady(models: Sequence[onnx.ModelProto]) -> Timing:
    """Return the times between which the first model's vary least, of at most three tries."""
    found: list[Timing] = []
    while len(found) < _ATTEMPTS and (not found or found[-1].spread() > _MOST_SPREAD):
        found.append(interleaved(models, ROUNDS))
    return min(found, key=lambda timing: timing.spread())


def _limited(path: Path, options: dict[str, Any], say: Say) -> Row:
    """Fold to a limit of latency; measure again what was reached."""
    start = time.perf_counter()
    try:
        result = onnxfold.fold(path, max_latency=LIMIT, verify=False, **options)
    except OnnxFoldError as error:
        say(f"{path.stem}: {error}")
        return {"asked": LIMIT, "error": str(error)}
    seconds = time.perf_counter() - start
    timing = _steady([onnx.load(path), result.model])
    say(f"{path.stem}: {LIMIT} asked, {timing.ratio():.2f} reached in {seconds:.0f} s")
    return {
        "asked": LIMIT, "reached": timing.ratio(), "spread": timing.ratio_spread(), "seconds": seconds,
        "removed": result.report.sparsity,
    }  # fmt: skip


def accuracy(model: onnx.ModelProto, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    """Return the part of the images whose class is the largest of the first output's scores."""
    session = Session(model, counted=load(model))
    (info,) = session.inputs
    scores = session.run_all(in_batches({info.name: images}, info.shape[0] or _BATCH))[0]
    return float(np.mean(np.argmax(scores, axis=1) == labels))
