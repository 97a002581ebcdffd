"""Points that a ResNet18 loses over the seconds of a system, ours beside published ones.

Usage: python -m benchmarks.paper_seconds

The rows are those of ``benchmarks/paper.json``, of the network at full width; the figure is an SVG.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from benchmarks.paper import OURS, PUBLISHED, RESNET, SPARSITIES

_FOLDER = Path(__file__).parent
#: Seconds of published systems, the least and the most; of DAFL they are not known.
_SECONDS = {
    "model folding (arXiv 2502.10216)": (55, 55),
    "DFAD": (2 * 3600, 2 * 3600),
    "ABM": (13 * 3600, 17 * 3600),
    "SpaceshipNet": (27 * 3600, 43 * 3600),
}
_SHOWN = {0.5: "50 % removed", 0.7: "70 % removed"}
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
            systems = {name: (span, _lost(name, sparsity)) for name, span in _SECONDS.items()}
            for name in OURS:
                row = kept["rows"].get(f"{name}:{sparsity:g}")
                if row is not None and "allocation" not in OURS[name]:
                    systems[f"{name.replace('`', '')}, 2 cores"] = ((row["seconds"],) * 2, dense - row["top1"])
            for (name, ((low, high), lost)), mark in zip(systems.items(), _MARKS, strict=False):
                label = name if name not in _SECONDS else f"{name}, A100"
                axes.plot([max(low, 1), max(high, 1)], [lost, lost], f"{mark}-", label=label)
            axes.set(xscale="log", xlabel="seconds of a whole fold", title=title)
            axes.grid(alpha=0.3, which="both")
        panels[0].set(ylabel="points lost, of 100")
        panels[-1].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)


def _lost(name: str, sparsity: float) -> float:
    """Return the points that a published system loses."""
    points, whole, _ = PUBLISHED[name]
    return whole - points[SPARSITIES.index(sparsity)]


if __name__ == "__main__":
    sys.exit(main())
