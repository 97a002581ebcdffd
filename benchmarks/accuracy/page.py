"""The Markdown page of the accuracy benchmark, written from its rows."""

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.accuracy import cells
from benchmarks.accuracy.networks import Network
from benchmarks.accuracy.store import Row, Store
from benchmarks.latency.timing import table as latency_table

#: Seconds that one fold may take.
SECONDS_ALLOWED = 150
#: Points that two seeds may differ by, and that inverted images may lie below real ones.
SEED_POINTS, DATA_POINTS = 0.5, 3.0
#: A row that misses its sparsity by more is marked.
_TOLERANCE = 0.01

_TITLES = {
    "curves": "Accuracy by sparsity, method and allocation",
    "defaults": "Widths and objective at defaults, beside weights alone",
    "methods": "Partitions with every repair, and statistics of data",
    "clusterings": "Partitions with the same repair",
    "wider": "The same layout in several widths",
    "regularised": "Networks trained with a penalty on the weights",
    "last-stages": "Only the last two stages folded (columns: fraction of their channels)",
}


def render(store: Store, networks: list[Network], folder: Path, figures: Iterable[Path]) -> str:
    """Return the page of the sections that were measured; links to figures are relative to the page's folder."""
    drawn = list(figures)
    lines = ["# Accuracy of folded networks", "", *_head(store), ""]
    parts: list[tuple[str, str, list[str]]] = [("bars", "Targets", _bars(store))]
    parts += [(s, t, _section(s, store, networks)) for s, t in _TITLES.items()]
    parts += [("variance", "Variance ratio per layer, and accuracy", _variance(store))]
    parts += [("correlation", "Correlation of the channels of a cluster", _correlation(store))]
    parts += [("latency", "Latency by the choice of widths", _latency(store))]
    parts += [("cost", "Where the time of a fold goes", _cost(store))]
    for name, title, body in parts:
        if not body or store.get("sections", name) is None:
            continue
        lines += [f"## {title}", "", *body, ""]
        own = (f for f in drawn if f.stem.startswith(name.replace("-", "_")))
        lines += [f"![{f.stem}]({os.path.relpath(f, folder)})" for f in own]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def variant(row: Row) -> str:
    """Return what a row folds with, in words."""
    how = row["method"]
    if row["cluster"] or row["repair"]:
        how = f"{row['cluster']} + {row['repair']}"
    said = {"auto": "", "data": " on training images"}.get(row["inputs"], f" on {row['inputs']}")
    return f"{how}{said}{', at defaults' if row.get('defaults') else ''}"


def _head(store: Store) -> list[str]:
    env = store.environment
    packages = ", ".join(f"{name} {found}" for name, found in env["packages"].items() if found)
    loads = [r["load"] for r in store.rows("cells")]
    codes = {r["code"] for kind in ("cells", "variance", "latency", "cost") for r in store.rows(kind)}
    load = f"The machine is shared: load average {min(loads):.1f} to {max(loads):.1f} meanwhile. " if loads else ""
    mixed = f"**The rows were measured with {len(codes)} versions of the code.** " if len(codes) > 1 else ""
    return [
        "Reproduce with `python -m benchmarks.accuracy` (its docstring says how). "
        f"Accuracy in percent on {store.images:,} test images, in brackets the percentage of the weights removed where "
        "it is more than a point off. No data and no training unless the row says so. *s* is the time of generating "
        "inputs (inverted images are the same for all folds of a network, made once and counted in every one) plus "
        f"folding. {load}{mixed}",
        "",
        f"{env['cpu']}, {env['cores']} cores, {env['memory_gib']} GiB, {env['platform']}; Python {env['python']}, "
        f"{packages}; commit {env['commit']}, code {env['code']}.",
    ]


def _bars(store: Store) -> list[str]:
    body = []
    met = total = 0
    for bar in cells.BARS:
        for sparsity, target in bar.targets.items():
            row = store.get("cells", bar.cell(sparsity).key)
            if row is None:
                continue
            reached = row["accuracy"] is not None and 100 * row["accuracy"] >= target
            met, total = met + reached, total + 1
            body.append(
                f"| {bar.network} | {_allocation(bar)} | {sparsity:.0%} | {target:.1f} | {_points(row)} | "
                f"{_verdict(row, target)} | {_percent(row['dense'])} | {row['input_kind']} | {_seconds(row)} |"
            )
    if not body:
        return []
    asked = sum(len(bar.targets) for bar in cells.BARS)
    unmeasured = f" {asked - total} of all {asked} were not measured." if total < asked else ""
    columns = "network | allocation | removed | target | reached | | dense | inputs | s: generate + fold = sum"
    lines = [f"{met} of {total} targets are met.{unmeasured}", "", f"| {columns} |", "|---" * 9 + "|", *body, ""]
    folds = [store.get("cells", bar.cell(s).key) for bar in cells.BARS for s in bar.targets]
    seconds = [float(r["total_s"]) for r in folds if r is not None and r["total_s"] is not None]
    if seconds:
        over = sum(s > SECONDS_ALLOWED for s in seconds)
        lines += [
            f"The slowest of these folds takes {max(seconds):.0f} s; {over} take more than {SECONDS_ALLOWED} s.",
            "",
        ]
    return lines + _seeds(store)


def _allocation(bar: cells.Bar) -> str:
    return bar.allocation if bar.inputs == "auto" else f"{bar.allocation}, without torch"


def _verdict(row: Row, target: float) -> str:
    if row["accuracy"] is None:
        return "failed"
    missing = target - 100 * row["accuracy"]
    return "met" if missing <= 0 else f"**{missing:.2f} below**"


def _seeds(store: Store) -> list[str]:
    body = []
    for bar in cells.SEEDED:
        pair = [store.get("cells", bar.cell(cells.SEEDED_SPARSITY, seed=s).key) for s in (0, 1)]
        values = [100 * r["accuracy"] for r in pair if r is not None and r["accuracy"] is not None]
        if len(values) == 2:
            apart = abs(values[0] - values[1])
            verdict = "met" if apart < SEED_POINTS else "**missed**"
            body.append(
                f"| {bar.network} | {bar.allocation} | {values[0]:.2f} | {values[1]:.2f} | {apart:.2f} | {verdict} |"
            )
    head = f"| network, {cells.SEEDED_SPARSITY:.0%} | allocation | seed 0 | seed 1 | apart | below {SEED_POINTS} |"
    return [head, "|---" * 6 + "|", *body] if body else []


def _section(name: str, store: Store, networks: list[Network]) -> list[str]:
    asked = cells.SECTIONS[name](networks)
    rows = [row for cell in asked if (row := store.get("cells", cell.key)) is not None]
    if not rows:
        return []
    sparsities = sorted({r["sparsity"] for r in rows})
    lines = []
    for network in dict.fromkeys(r["network"] for r in rows):
        own = [r for r in rows if r["network"] == network]
        lines += [f"**{network}**, dense {_percent(own[0]['dense'])}", ""]
        lines += ["| | allocation | " + " | ".join(f"{s:.0%}" for s in sparsities) + " | s |"]
        lines += ["|---" * (len(sparsities) + 3) + "|"]
        for label, allocation in dict.fromkeys((variant(r), r["allocation"]) for r in own):
            found = {r["sparsity"]: r for r in own if (variant(r), r["allocation"]) == (label, allocation)}
            results = " | ".join(_points(found[s]) if s in found else "" for s in sparsities)
            lines.append(f"| {label} | {allocation} | {results} | {_range(found.values())} |")
        lines.append("")
        if name == "methods":
            lines += [*_order(own), ""]
    refused = dict.fromkeys(f"- {r['network']}, {variant(r)}: {r['error']}" for r in rows if r["error"])
    return lines + list(refused)


def _order(rows: list[Row]) -> list[str]:
    """Check the order of the published methods."""
    lines = []
    for sparsity in sorted({r["sparsity"] for r in rows}):
        own = {r["method"]: r["accuracy"] for r in rows if r["sparsity"] == sparsity and not r["repair"]}
        order = [own.get(m) for m in ("fold-naive", "fold-ar", "fold-dir", "fold-r")]
        if any(a is None for a in order):
            continue
        naive, ar, inverted, data = (100 * a for a in order if a is not None)
        held = naive < ar < inverted
        near = abs(data - inverted) <= DATA_POINTS
        lines.append(
            f"- {sparsity:.0%}: naive {naive:.1f}, AR {ar:.1f}, DIR {inverted:.1f}, R {data:.1f}: naive < AR < DIR "
            f"{'holds' if held else '**does not hold**'}; DIR is {abs(data - inverted):.1f} points from R "
            f"({'within' if near else '**not within**'} {DATA_POINTS:g})"
        )
    return lines


def _variance(store: Store) -> list[str]:
    rows = store.rows("variance")
    if not rows:
        return []
    note = (
        "Mean over a layer's original channels of the variance of their cluster, divided by their own, on test images "
        "(`benchmarks/accuracy/variance.py`): 1 is healthy, below it activations have collapsed. Dropped channels have "
        "no cluster and do not count; where consumers are refitted, a ratio other than 1 is no loss by itself."
    )
    columns = "| network | | removed | first | median | last | accuracy |"
    lines = [note, "", columns, "|---" * 7 + "|"]
    for r in rows:
        ratios = [ratio for _, ratio in r["layers"]]
        values = " | ".join(f"{v:.2f}" for v in (ratios[0], _median(ratios), ratios[-1]))
        lines.append(f"| {r['network']} | {variant(r)} | {r['sparsity']:.0%} | {values} | {_percent(r['accuracy'])} |")
    return lines


def _correlation(store: Store) -> list[str]:
    rows = store.rows("correlation")
    if not rows:
        return []
    note = (
        "Pearson's correlation of channels on test images (`benchmarks/accuracy/correlation.py`), median and smallest "
        "over layers: of channels in one cluster, of those in different ones, and of each with the closest other."
    )
    columns = "| network | | removed | in one cluster | in different ones | with the closest | accuracy |"
    lines = [note, "", columns, "|---" * 7 + "|"]
    for r in rows:
        columns_of = zip(*(means for _, *means in r["layers"]), strict=True)
        measured = [[m for m in means if not math.isnan(m)] for means in columns_of]
        values = " | ".join(f"{_median(means):.2f}, {min(means):.2f}" if means else "" for means in measured)
        lines.append(f"| {r['network']} | {variant(r)} | {r['sparsity']:.0%} | {values} | {_percent(r['accuracy'])} |")
    return lines


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _latency(store: Store) -> list[str]:
    rows = store.rows("latency")
    if not rows:
        return []
    note = (
        "onnxruntime, one thread, one image; all files run in turn, a ratio is the median over rounds of the ratio "
        "within a round. Where time / dense lies above MACs / dense, the widths suit the runtime badly."
    )
    lines = [note, ""]
    for r in rows:
        lines += [f"**{r['key']}**", "", *latency_table(r["choices"]), ""]
    return lines


def _cost(store: Store) -> list[str]:
    rows = store.rows("cost")
    if not rows:
        return []
    phases = list(dict.fromkeys(p for r in rows for p, seconds in r["phases"].items() if seconds >= 0.5))
    lines = [
        "fold-ls at 50 %, each fold in a process of its own; *memory* is the peak above what the process held "
        "after its imports. Seconds by phase; phases below half a second are left out.",
        "",
        "| network | inputs | allocation | s | memory, MiB | load | " + " | ".join(phases) + " |",
        "|---" * (6 + len(phases)) + "|",
    ]
    for r in rows:
        spent = " | ".join(f"{r['phases'].get(p, 0.0):.1f}" for p in phases)
        lines.append(
            f"| {r['network']} | {r['input_kind']} | {r['allocation']} | {r['seconds']:.1f} | {r['extra_mib']:,.0f} "
            f"| {r['load']:.1f} | {spent} |"
        )
    return lines


def _points(row: Row) -> str:
    if row["accuracy"] is None:
        return "failed"
    off = not row["channels"] and abs(row["removed"] - row["sparsity"]) > _TOLERANCE
    return f"{100 * row['accuracy']:.2f}" + (f" ({row['removed']:.0%})" if off else "")


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _seconds(row: Row) -> str:
    if row["total_s"] is None:
        return ""
    return f"{row['generation_s']:.0f} + {row['fold_s']:.0f} = {row['total_s']:.0f}"


def _range(rows: Iterable[Row]) -> str:
    found = [r for r in rows if r["total_s"] is not None]
    if not found:
        return ""
    spread: Callable[[str], Any] = lambda name: (min(r[name] for r in found), max(r[name] for r in found))  # noqa: E731
    (low, high), generation = spread("fold_s"), spread("generation_s")[1]
    folding = f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
    return f"{generation:.0f} + {folding}" if generation else folding
