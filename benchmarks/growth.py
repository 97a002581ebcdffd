"""Growth of the time of a fold with channels, positions and samples.

Usage: python -m benchmarks.growth [--axes channels positions samples] [--limit SECONDS] [--out FILE.md]

One number grows, all others stay: the channels of a layer, the positions of an image, the samples that are shown. Every
cell is a process of its own, and its processor time is counted, without imports. The exponent of a row is the slope of
the logarithm of the time over the three largest sizes. It is to be at most 1.2, but for channels, where matrices are
inverted: 3. Growth with the number of nodes: benchmarks/graph_size.py. Exit code 1: an exponent is larger.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.graph_size import measure
from testing.graph_builder import GraphBuilder

_PAGE = Path(__file__).with_suffix(".md")
#: Sizes that an exponent is fitted to.
_FITTED = 3


def wide_layer(channels: int) -> onnx.ModelProto:
    """A layer of so many channels between two of 64 channels."""
    g = GraphBuilder("wide", 0, (64,))
    g.output(g.gemm(g.relu(g.gemm("x", channels)), 64))
    return g.build()


def images(side: int) -> onnx.ModelProto:
    """Three convolutions of 16 channels at every pixel of an image of so many pixels a side."""
    g = GraphBuilder("images", 0, (3, side, side))
    x = g.relu(g.conv(g.relu(g.conv("x", 16)), 16))
    g.output(g.head(g.relu(g.conv(x, 16))))
    return g.build()


@dataclass(frozen=True)
class Axis:
    """What grows."""

    sizes: Sequence[int]
    model: Callable[[int], onnx.ModelProto]
    options: Callable[[int], dict[str, object]]
    grows: Callable[[int], int]  # the number that grows, by size
    most: float  # the largest exponent


AXES = {
    "channels": Axis((64, 256, 1024, 4096, 8192), wide_layer, lambda size: {"samples": 512}, int, 3.0),
    "positions": Axis((28, 64, 128, 256, 512, 1024), images, lambda size: {"samples": 8}, lambda size: size**2, 1.2),
    "samples": Axis(
        (64, 256, 1024, 4096, 16384), lambda size: images(32), lambda size: {"samples": size}, int, 1.2
    ),
}  # fmt: skip


def exponent(numbers: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log numbers, by least squares over the largest sizes."""
    x, y = np.log(numbers[-_FITTED:]), np.log(np.maximum(seconds[-_FITTED:], 1e-9))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    """Measure every cell and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--limit", type=float, default=900.0)
    parser.add_argument("--out", type=Path, default=_PAGE)
    args = parser.parse_args()
    lines = ["# Growth of the time of a fold", "", "Processor seconds without imports, and peak memory of the process; "
             f"written by `python -m benchmarks.growth` on {time.strftime('%Y-%m-%d')}. The exponent is fitted to the "
             f"{_FITTED} largest sizes. Growth with nodes: [graph_size.md](graph_size.md).", ""]  # fmt: skip
    too_large = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.axes:
            axis, seconds = AXES[name], list[float]()
            lines += [f"## {name.capitalize()}", "", (axis.model.__doc__ or "Images of 32 x 32 pixels.").strip(), ""]
            lines += [f"| {name} | seconds | GiB |", "|---:|---:|---:|"]
            for size in axis.sizes:
                path = Path(folder) / f"{name}_{size}.onnx"
                onnx.save(axis.model(size), path)
                options = {"inputs": "dead-leaves", **axis.options(size)}
                cell = measure(path, f"onnxfold.fold(path, 0.25, **{options!r})", args.limit)
                print(name, size, cell, flush=True)
                if isinstance(cell, str):
                    lines.append(f"| {axis.grows(size):,} | {cell} | |")
                    too_large.append(f"{name}: {cell}")
                    break
                seconds.append(cell[0])
                lines.append(f"| {axis.grows(size):,} | {cell[0]:.2f} | {cell[1]:.2f} |")
            if len(seconds) >= _FITTED:
                slope = exponent([axis.grows(size) for size in axis.sizes[: len(seconds)]], seconds)
                lines += ["", f"Exponent: {slope:.2f}, at most {axis.most:g}.", ""]
                too_large += [f"{name}: {slope:.2f}"] if not math.isfinite(slope) or slope > axis.most else []
    args.out.write_text("\n".join(lines).rstrip() + "\n")
    sys.exit(f"grows too fast: {', '.join(too_large)}" if too_large else 0)


if __name__ == "__main__":
    main()
