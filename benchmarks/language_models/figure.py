"""The figure of a model: how much is left over how much was removed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.language_models.row import Row

_SIZE = (9.5, 4.2)
_MARKS = "osv^D<>PX*hd"
#: Ratios beyond this are no models any more.
_WORST = 100.0


def draw(rows: Sequence[Row], file: Path) -> bool:
    """Write a figure as SVG, with a panel for either kind of inputs; return whether matplotlib is there."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    is_decoder = rows[0].kind == "decoder"
    shown = [on_text for on_text in (False, True) if any(row.on_text is on_text for row in rows)]
    titles = list(dict.fromkeys(row.title for row in rows))
    with matplotlib.rc_context({"svg.hashsalt": file.stem, "svg.fonttype": "none"}):
        figure, panels = plt.subplots(1, len(shown), figsize=_SIZE, sharey=True, squeeze=False)
        for axes, on_text in zip(panels[0], shown, strict=True):
            for number, title in enumerate(titles):
                own = sorted((r for r in rows if r.title == title and r.on_text is on_text), key=lambda r: r.removed)
                points = [(100 * r.removed, _value(r)) for r in own]
                if points:
                    axes.plot(*zip(*points, strict=True), f"{_MARKS[number % len(_MARKS)]}-", label=title, markersize=5)
            axes.set(xlabel="weights removed, %", title="shown text" if on_text else "without data")
            axes.grid(alpha=0.3, which="both")
            if is_decoder:
                axes.set(yscale="log")
        panels[0][0].set(ylabel="perplexity, times the original's" if is_decoder else "nearest neighbour kept")
        panels[0][0].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(file, format="svg", metadata={"Date": None})
        plt.close(figure)
    return True


def _value(row: Row) -> float:
    first = next(iter(row.scores.values()))
    return min(first["ratio"], _WORST) if "ratio" in first else first["kept"]
