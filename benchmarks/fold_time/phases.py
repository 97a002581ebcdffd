"""Seconds of a fold by phase, at two revisions in one run."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Rows of the table: the phase, and what the progress callback is told in it: its first words.
_PHASES = (
    ("import", ("import onnxfold",)),
    ("open and analyse", ("load", "check weights", "find fold groups")),
    ("generate inputs", ("model", "generate inputs", "write text")),
    ("inversion", ("deep inversion",)),
    ("drop blocks", ("measure blocks", "probe blocks")),
    ("observe", ("observe activations",)),
    ("error curves", ("error curves",)),
    ("probe groups", ("probe groups",)),
    (
        "merge and repair",
        ("partition", "FoldChannels", "Repair", "least squares", "Recalibrate", "recalibrate", "biases"),
    ),
    ("diagnose", ("compare activations",)),
    ("refine", ("refine",)),
    ("measure latency", ("measure latency", "measure layers", "measure folds")),
    ("quantise", ("prepare quantisation", "measure ranges", "quantize")),
    ("verify and report", ("verify in onnxruntime",)),
)
_OTHER = "other"

Told = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A fold to time: a model's file, what it is called, and options of the fold."""

    name: str
    model: Path
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """What both sides told of a case, run after run: before and after in turn."""

    case: Case
    before: Sequence[Told]
    after: Sequence[Told]


def time_pair(case: Case, trees: Sequence[Path], repeats: int) -> Pair:
    """Fold with both trees in turn, so that whatever else the machine does meets both alike."""
    told: tuple[list[Told], list[Told]] = ([], [])
    for _ in range(repeats):
        for tree, runs in zip(trees, told, strict=True):
            runs.append(_run(case, tree))
    return Pair(case, *told)


def _run(case: Case, tree: Path) -> Told:
    script = Path(__file__).with_name("side.py")
    with tempfile.TemporaryDirectory() as folder:
        # Nothing is left to be found by the other side, or by the next run.
        environment = {**os.environ, "PYTHONPATH": str(tree), "XDG_CACHE_HOME": folder}
        command = [sys.executable, "-P", str(script), str(case.model.resolve()), json.dumps(dict(case.options))]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    told: Told = json.loads(done.stdout.splitlines()[-1])
    return _belongs(told, tree)


def _belongs(told: Told, tree: Path) -> Told:
    """Refuse what other code than a tree's told."""
    if not Path(told["file"]).resolve().is_relative_to(tree.resolve()):
        raise SystemExit(f"{told['file']} was imported instead of {tree}")
    return told


#: What the peak of a fold shall stay below: so many bytes, and so many times the size of the model's file.
_ALLOWED, _TIMES = 1 << 30, 4


def summary(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield the lines of a table of all folds: seconds and peak memory, before and after."""
    rows = [(pair, pair.case.model.stat().st_size) for pair in pairs]
    over = [[_peak(runs) > _ALLOWED + _TIMES * size for runs in (pair.before, pair.after)] for pair, size in rows]
    yield (
        f"Of {len(pairs)} folds {sum(now for _, now in over)} took more than 1 GB and four times the size of the model "
        f"(**bold**); before, {sum(was for was, _ in over)}."
    )
    yield ""
    yield "| network | MB | removed | s before | s after | CPU s before | CPU s after | MB before | MB after |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for (pair, size), marks in zip(rows, over, strict=True):
        sides = (pair.before, pair.after)
        seconds = [f"{min(run['total'][clock] for run in runs):.1f}" for clock in ("wall", "cpu") for runs in sides]
        peaks = [f"**{_peak(r) >> 20}**" if mark else f"{_peak(r) >> 20}" for r, mark in zip(sides, marks, strict=True)]
        cells = [pair.case.name, f"{size / 1e6:.1f}", f"{pair.after[-1]['removed']:.1%}", *seconds, *peaks]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _peak(runs: Sequence[Told]) -> int:
    """Return the most bytes that a fold held, of the run with the least."""
    return min(run["peak"] for run in runs)


def by_phase(runs: Sequence[Told], clock: str) -> dict[str, float]:
    """Return the seconds of every phase, each the least of all runs."""
    found: dict[str, list[float]] = {}
    for run in runs:
        seconds: dict[str, float] = {}
        for text, spent in run["phases"].items():
            phase = next((name for name, words in _PHASES if text.startswith(words)), _OTHER)
            seconds[phase] = seconds.get(phase, 0.0) + spent[clock]
        for phase, spent in seconds.items():
            found.setdefault(phase, []).append(spent)
    return {phase: min(spent) for phase, spent in found.items()}


def table(pair: Pair) -> Iterator[str]:
    """Yield the lines of a table: seconds by phase, before and after, and what the network was run on."""
    yield f"### {pair.case.name}"
    yield ""
    yield "| phase | CPU s before | CPU s after | wall s before | wall s after |"
    yield "|---|---:|---:|---:|---:|"
    columns = [by_phase(runs, clock) for clock in ("cpu", "wall") for runs in (pair.before, pair.after)]
    for phase in [*(name for name, _ in _PHASES), _OTHER]:
        if any(column.get(phase, 0.0) >= 0.05 for column in columns):
            yield f"| {phase} | {' | '.join(f'{column.get(phase, 0.0):.1f}' for column in columns)} |"
    totals = [min(r["total"][clock] for r in runs) for clock in ("cpu", "wall") for runs in (pair.before, pair.after)]
    yield f"| **all** | {' | '.join(f'**{seconds:.1f}**' for seconds in totals)} |"
    yield ""
    for label, runs in (("before", pair.before), ("after", pair.after)):
        yield f"{label}: run on {runs[-1]['inputs'] or 'nothing'}; {runs[-1]['removed']:.1%} removed  "
    yield ""
