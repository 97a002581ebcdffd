"""The figure of a network: accuracy over bytes and over milliseconds."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from benchmarks.accuracy.store import Row

_SIZE = (9.5, 4.2)
_DPI = 130
_LINES = {
    ("onnx", "float32"): ("ONNX, folded", "o-"),
    ("onnx", "int8"): ("ONNX, folded + int8", "s-"),
    ("tflite", "float32"): ("TFLite, folded", "o--"),
    ("tflite", "int8"): ("TFLite, folded + int8", "s--"),
}


def draw(network: str, rows: Sequence[Row], file: Path) -> None:
    """Write the figure; every line begins at the network with all its channels, marked by a ring."""
    figure, panels = plt.subplots(1, 2, figsize=_SIZE, sharey=True)
    for axes, measure, name in zip(panels, ("bytes", "ms"), ("bytes", "milliseconds per image"), strict=True):
        for (runtime, dtype), (title, style) in _LINES.items():
            own = sorted(
                (r for r in rows if (r["runtime"], r["dtype"]) == (runtime, dtype)), key=lambda r: r["sparsity"]
            )
            x, y = [r[measure] for r in own], [100 * r["accuracy"] for r in own]
            (line,) = axes.plot(x, y, style, label=title, markersize=4)
            axes.plot(x[:1], y[:1], "o", markersize=10, fillstyle="none", color=line.get_color())
        axes.set(xlabel=name, xscale="log")
        axes.grid(alpha=0.3, which="both")
    panels[0].set(ylabel="accuracy, %", title=network)
    panels[1].set(title="rings: no channel removed")
    panels[0].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(file, dpi=_DPI)
    plt.close(figure)
