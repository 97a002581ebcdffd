"""The figures of the accuracy benchmark, drawn from its rows."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from benchmarks.accuracy import cells
from benchmarks.accuracy.networks import Network
from benchmarks.accuracy.page import variant
from benchmarks.accuracy.store import Row, Store

_SIZE = (7.0, 4.2)
_DPI = 130
_MARKERS = "osv^D<>Xp*h"


def draw(store: Store, networks: list[Network], folder: Path) -> list[Path]:
    """Write every figure that there are rows for; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = {row["key"] for row in store.rows("sections")}
    rows = {n: _rows(store, section(networks)) if n in measured else [] for n, section in cells.SECTIONS.items()}
    drawn = []
    for network in dict.fromkeys(r["network"] for r in rows["curves"]):
        own = [r for r in rows["curves"] if r["network"] == network]
        drawn.append(_curves(own, f"{network}: accuracy over weights removed", folder / f"curves_{network}.png"))
    drawn += [_bars(rows[name], folder / f"{name}.png") for name in ("methods", "clusterings") if rows[name]]
    for name in ("wider", "regularised"):
        for method in dict.fromkeys(r["method"] for r in rows[name]):
            own = [r for r in rows[name] if r["method"] == method]
            drawn.append(_drops(own, f"{method}, uniform", folder / f"{name}_{method}.png"))
    for network in dict.fromkeys(r["network"] for r in rows["last-stages"]):
        own = [r for r in rows["last-stages"] if r["network"] == network]
        title = f"{network}: only the last two stages folded"
        drawn.append(_curves(own, title, folder / f"last_stages_{network}.png", "channels removed there, %"))
    drawn += _variance(store.rows("variance"), folder)
    drawn += _variance_and_accuracy(store.rows("variance"), folder)
    drawn += _correlation(store.rows("correlation"), folder)
    drawn += [_latency(r, folder / f"latency_{r['key']}.png") for r in store.rows("latency")]
    if store.rows("cost"):
        drawn.append(_cost(store.rows("cost"), folder / "cost.png"))
    return drawn


def _rows(store: Store, asked: list[cells.Cell]) -> list[Row]:
    found = (store.get("cells", cell.key) for cell in asked)
    return [r for r in found if r is not None and r["accuracy"] is not None]


def _curves(rows: list[Row], title: str, file: Path, axis: str = "weights removed, %") -> Path:
    figure, axes = plt.subplots(figsize=_SIZE)
    axes.axhline(100 * rows[0]["dense"], color="grey", linewidth=0.8, label="dense")
    measure = "sparsity" if rows[0]["channels"] else "removed"
    labels = dict.fromkeys((variant(r), r["allocation"]) for r in rows)
    for i, (name, allocation) in enumerate(labels):
        own = sorted((r for r in rows if (variant(r), r["allocation"]) == (name, allocation)), key=lambda r: r[measure])
        style = "-" if allocation == "global" else "--"
        axes.plot(
            [100 * r[measure] for r in own], [100 * r["accuracy"] for r in own], style,
            marker=_MARKERS[i % len(_MARKERS)], label=f"{name}, {allocation}",
        )  # fmt: skip
    axes.set(xlabel=axis, ylabel="accuracy, %", title=title)
    axes.legend(fontsize=7)
    return _save(figure, axes, file)


def _bars(rows: list[Row], file: Path) -> Path:
    """Draw one bar per partition and repair, one panel per network (twins in one) and sparsity."""
    panels = list(dict.fromkeys((_twins(r), r["sparsity"]) for r in rows))
    figure, grid = plt.subplots(len(panels), 1, figsize=(9.0, 3.0 * len(panels)), squeeze=False)
    for axes, (network, sparsity) in zip(grid[:, 0], panels, strict=True):
        own = [r for r in rows if (_twins(r), r["sparsity"]) == (network, sparsity)]
        heights = [100 * r["accuracy"] for r in own]
        axes.bar(range(len(own)), heights)
        axes.set_xticks(range(len(own)), [variant(r) for r in own], rotation=40, ha="right", fontsize=6)
        axes.set(ylabel="accuracy, %", title=f"{network}, {sparsity:.0%} of the weights removed")
        axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=_DPI)
    plt.close(figure)
    return file


def _twins(row: Row) -> str:
    """Return the name that a network shares with its twin without BatchNormalizations."""
    return str(row["network"]).removesuffix("_bn").removesuffix("_fused")


def _drops(rows: list[Row], title: str, file: Path) -> Path:
    """Draw the accuracy lost, one line per network."""
    figure, axes = plt.subplots(figsize=_SIZE)
    for i, network in enumerate(dict.fromkeys(r["network"] for r in rows)):
        own = sorted((r for r in rows if r["network"] == network), key=lambda r: r["removed"])
        lost = [100 * (r["dense"] - r["accuracy"]) for r in own]
        label = f"{network} ({100 * own[0]['dense']:.1f} %, {own[0]['dense_parameters'] / 1e6:.2f} M)"
        axes.plot([100 * r["removed"] for r in own], lost, marker=_MARKERS[i % len(_MARKERS)], label=label)
    axes.set(xlabel="weights removed, %", ylabel="accuracy lost, points", title=title)
    axes.legend(fontsize=7)
    return _save(figure, axes, file)


def _variance(rows: list[Row], folder: Path) -> Iterable[Path]:
    for network, sparsity in dict.fromkeys((r["network"], r["sparsity"]) for r in rows):
        own = [r for r in rows if (r["network"], r["sparsity"]) == (network, sparsity)]
        lines = {variant(row): [ratio for _, ratio in row["layers"]] for row in own}
        title, file = f"{network}, {sparsity:.0%}, uniform", f"variance_{network}_{100 * sparsity:.0f}.png"
        names = [name for name, *_ in own[0]["layers"]]
        yield _by_layer(names, lines, 1.0, folder / file, ylabel="variance, folded / dense", title=title, yscale="log")


def _variance_and_accuracy(rows: list[Row], folder: Path) -> Iterable[Path]:
    """Draw a point per fold: accuracy over the variance ratio of the last layer."""
    for network in dict.fromkeys(r["network"] for r in rows):
        figure, axes = plt.subplots(figsize=_SIZE)
        axes.axvline(1.0, color="grey", linewidth=0.8)
        own = [r for r in rows if r["network"] == network]
        for i, name in enumerate(dict.fromkeys(map(variant, own))):
            points = [r for r in own if variant(r) == name]
            ratios = [r["layers"][-1][1] for r in points]
            axes.plot(ratios, [100 * r["accuracy"] for r in points], _MARKERS[i % len(_MARKERS)], label=name)
        axes.set(xlabel="variance of the last layer, folded / dense", ylabel="accuracy, %", title=network, xscale="log")
        axes.legend(fontsize=7)
        yield _save(figure, axes, folder / f"variance_accuracy_{network}.png")


def _correlation(rows: list[Row], folder: Path) -> Iterable[Path]:
    for row in rows:
        means = zip(*(means for _, *means in row["layers"]), strict=True)
        lines = dict(
            zip(("in one cluster", "in different clusters", "with the closest"), map(list, means), strict=True)
        )
        names = [name for name, *_ in row["layers"]]
        title = f"{row['network']}, {variant(row)}, {row['sparsity']:.0%}, uniform"
        file = folder / f"correlation_{row['network']}_{variant(row)}.png"
        yield _by_layer(names, lines, 0.0, file, ylabel="correlation of channels", title=title)


def _by_layer(names: list[str], lines: dict[str, list[float]], base: float, file: Path, **axis: str) -> Path:
    """Draw a line per entry over the layers, and one at the base."""
    figure, axes = plt.subplots(figsize=_SIZE)
    axes.axhline(base, color="grey", linewidth=0.8)
    for i, (label, values) in enumerate(lines.items()):
        axes.plot(range(len(values)), values, marker=_MARKERS[i % len(_MARKERS)], label=label)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=6)
    axes.set(**axis)
    axes.legend(fontsize=7)
    return _save(figure, axes, file)


def _latency(row: Row, file: Path) -> Path:
    """Draw time over MACs, both relative to the dense network."""
    figure, axes = plt.subplots(figsize=_SIZE)
    steps = dict.fromkeys(c["round_to"] for c in row["choices"])
    for i, step in enumerate(steps):
        own = sorted(
            (c for c in row["choices"] if c["round_to"] == step and c["macs_ratio"] is not None),
            key=lambda c: float(c["macs_ratio"]),
        )
        label = "every channel ratio" if step is None else f"round_to={step}"
        marker = _MARKERS[i % len(_MARKERS)]
        axes.plot([c["macs_ratio"] for c in own], [c["time_ratio"] for c in own], "--", marker=marker, label=label)
    ends = np.array([0.0, 1.0])
    axes.plot(ends, ends, color="grey", linewidth=0.8, label="in proportion")
    axes.set(xlabel="MACs / dense", ylabel="time / dense", title=f"{row['key']}: onnxruntime, one thread")
    axes.legend(fontsize=7)
    return _save(figure, axes, file)


def _cost(rows: list[Row], file: Path) -> Path:
    figure, axes = plt.subplots(figsize=(9.0, 1.4 + 0.5 * len(rows)))
    names = [f"{r['network']}\n{r['input_kind']}, {r['allocation']}" for r in rows]
    phases = list(dict.fromkeys(p for r in rows for p, seconds in r["phases"].items() if seconds >= 0.5))
    left = np.zeros(len(rows))
    for phase in phases:
        seconds = np.array([r["phases"].get(phase, 0.0) for r in rows])
        axes.barh(range(len(rows)), seconds, left=left, label=phase)
        left += seconds
    axes.set_yticks(range(len(rows)), names, fontsize=6)
    axes.set(xlabel="seconds", title="Where the time of a fold goes")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _save(figure, axes, file)


def _save(figure: Any, axes: Any, file: Path) -> Path:
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, dpi=_DPI)
    plt.close(figure)
    return file
