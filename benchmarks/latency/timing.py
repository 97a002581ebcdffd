"""Latencies of the folded files of one network, timed in turn."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx

import onnxfold
from onnxfold.graph.files.load import load
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.latency.interleaved import Timing, clock_for, open_timed, runs_of, time_interleaved

SPARSITIES = (0.25, 0.5, 0.7, 0.85)
ROUND_TO = (1, 4, 8, 16)
#: Channel ratios that take a group of 64 channels to 63, 62, 61, 60, 56, 52, 48, 47, 40, 33, 32.
SCAN = (1 / 64, 2 / 64, 3 / 64, 4 / 64, 8 / 64, 12 / 64, 16 / 64, 17 / 64, 24 / 64, 31 / 64, 0.5)
ROUNDS = 60

Row = dict[str, Any]


def measure(path: Path, sparsities: Sequence[float], *, rounds: int, scan: Iterable[float] = SCAN) -> list[Row]:
    """Return a row per choice of widths, the dense network first.

    Parameters
    ----------
    path : Path
        A trained network.
    sparsities : sequence of float
        Fractions of the weights to remove, once per step in :data:`ROUND_TO`.
    rounds : int
        How often every file is run.
    scan : iterable of float
        Channel ratios that every group is folded by.
    """
    dense = onnx.load(path)
    choices: list[tuple[str, dict[str, Any]]] = [
        (f"{s:.0%} of the weights, round_to={step}", {"sparsity": s, "allocation": "uniform", "round_to": step})
        for s in sparsities
        for step in ROUND_TO
    ]
    choices += [(f"{ratio:.1%} of the channels", {"channel_ratio": ratio}) for ratio in scan]
    size = onnxfold.fold(path, channel_ratio=0.0, method="fold-naive", verify=False).report.before
    first = {"choice": "dense", "removed": 0.0, "macs": size.macs, "macs_ratio": 1.0, "widths": [], "round_to": None}
    rows, models = [first], [dense]
    for name, options in choices:
        result = onnxfold.fold(path, method="fold-naive", **options)
        report = result.report
        macs = report.after.macs
        rows.append(
            {
                "choice": name,
                "removed": report.sparsity,
                "macs": macs,
                "macs_ratio": macs / size.macs if macs and size.macs else None,
                "widths": [g.folded_width for g in report.groups],
                "round_to": options.get("round_to"),
            }
        )
        models.append(result.model)
    times = interleaved(models, rounds)
    for i, row in enumerate(rows):
        row["median_ms"], row["time_ratio"] = times.median(i) * 1e3, times.ratio(i)
    return rows


def interleaved(models: Sequence[onnx.ModelProto], rounds: int) -> Timing:
    """Return the times of models, the first being what others are compared with, with one thread and one sample."""
    sessions = [open_timed(model, load(model), threads=1) for model in models]
    feeds = noise_inputs(sessions[0].inputs, samples=1, seed=0, view=load(models[0]))
    return time_interleaved(runs_of(sessions, feeds), rounds=rounds, clock=clock_for(1))


def table(rows: list[Row]) -> list[str]:
    """Return a Markdown table."""
    head = "| widths | weights removed | widths of the groups | MACs / dense | time / dense | ms, median |"
    lines = [head, "|---" * 6 + "|"]
    for r in rows:
        macs = f"{r['macs_ratio']:.2f}" if r["macs_ratio"] is not None else "?"
        widths = " ".join(map(str, r["widths"]))
        times = f"{r['time_ratio']:.2f} | {r['median_ms']:.2f}"
        lines.append(f"| {r['choice']} | {r['removed']:.1%} | {widths} | {macs} | {times} |")
    return lines
