"""Points that a ResNet18 loses over the seconds of a system, ours beside published ones.

Usage: python -m benchmarks.paper_seconds

The rows are those of ``benchmarks/paper.json``, of the network at full width; the figure is an SVG.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from benchmarks.paper import OURS, PUBLISHED, RESNET, SPARSITIES

_FOLDER = Path(__file__).parent
#: The time of a published system, and its machine; where no number is known, the system is not shown.
_TIME, _UNITS = re.compile(r"(\d+)(?: to (\d+))? ([sh]), (.+)"), {"s": 1, "h": 3600}
_SHOWN = {0.5: "50 % removed", 0.7: "70 % removed"}
#: A label, the least and the most seconds, and the points that are lost.
_Point = tuple[str, list[int], float]
_SIZE, _MARKS = (9.5, 3.8), "osv^D<>P"


def main() -> int:
    """Draw the figure."""
    draw(json.loads((_FOLDER / "paper.json").read_text())[RESNET], _FOLDER / "figures" / "paper_seconds.svg")
    return 0


def draw(kept: dict[str, Any], file: Path) -> None:
    """Write the figure of a network's rows."""
    matplotlib.use("Agg")
    dense = 100 * kept["training"]["test_accuracy_bn"]
    with matplotlib.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure, panels = plt.subplots(1, len(_SHOWN), figsize=_SIZE, sharey=True)
        for axes, (sparsity, title) in zip(panels, _SHOWN.items(), strict=True):
            points = [*_published(sparsity), *_measured(kept["rows"], sparsity, dense)]
            for (label, span, lost), mark in zip(points, _MARKS, strict=False):
                axes.plot(span, [lost, lost], f"{mark}-", label=label)
            axes.set(xscale="log", xlabel="seconds of a whole fold", title=title)
            axes.grid(alpha=0.3, which="both")
        panels[0].set(ylabel="points lost, of 100")
        panels[-1].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)


def _published(sparsity: float) -> Iterator[_Point]:
    """Yield the published systems."""
    for name, (points, whole, time) in PUBLISHED.items():
        if found := _TIME.fullmatch(time):
            low, high, unit, machine = found.groups()
            span = [int(number) * _UNITS[unit] for number in (low, high or low)]
            yield f"{name}, {machine}", span, whole - points[SPARSITIES.index(sparsity)]


def _measured(rows: dict[str, Any], sparsity: float, dense: float) -> Iterator[_Point]:
    """Yield our systems that spend all accuracy on weights."""
    for name, options in OURS.items():
        row = rows.get(f"{name}:{sparsity:g}")
        if row is not None and "allocation" not in options:
            yield f"{name.replace('`', '')}, {row['machine']}", [max(row["seconds"], 1)] * 2, dense - row["top1"]


if __name__ == "__main__":
    sys.exit(main())
