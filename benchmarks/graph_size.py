"""Time of `inspect` and `fold` by the number of nodes: generated graphs of 1,000 to 100,000 nodes.

Usage: python -m benchmarks.graph_size [--nodes 1000 10000 100000] [--graphs relu conv ...] [--limit SECONDS]

Layers are narrow and images small, so that what is measured is the work per node. Weights are close to permutations:
activations neither die nor grow, however deep the graph is. Every cell is a process of its own, and its processor time
is counted, without imports: neighbours on a shared machine matter less to it. A cell that takes longer than the limit
is written as such, and larger ones of the same row are left out. Exit code 1: a fold of 10,000 nodes took more than ten
times as long as one of 1,000, or a cell could not be done.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

_PAGE = Path(__file__).with_suffix(".md")
_WIDTH, _SIZE = 4, 4
#: What is done, as code for a process of its own that knows `path`.
_WORK = {
    "inspect": "onnxfold.inspect(path)",
    "fold-ar": "onnxfold.fold(path, 0.25, method='fold-ar', inputs='dead-leaves', samples=8)",
    "fold-ls": "onnxfold.fold(path, 0.25, method='fold-ls', inputs='dead-leaves', samples=8)",
}
_CHILD = """
import json, resource, sys, time, onnxfold.api, sklearn.cluster, torch
path = sys.argv[1]
start = time.process_time()
{work}
seconds = time.process_time() - start
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20]))
"""


class _Graph:
    """Nodes and weights of one graph on an image."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, rows: int, columns: int, scale: float = 1.0, name: str = "") -> str:
        """Return a weight of shape (rows, columns, 1, 1) that mixes little."""
        values = 1e-3 * self.random.standard_normal((rows, columns, 1, 1))
        values[np.arange(rows), self.random.permutation(max(rows, columns))[:rows] % columns] += 1.0
        name = name or f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array((scale * values).astype(np.float32), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def conv(self, x: str, inputs: int = _WIDTH, scale: float = 1.0) -> str:
        return self.node("Conv", x, self.weight(_WIDTH, inputs, scale))

    def model(self, y: str) -> onnx.ModelProto:
        pooled = self.node("GlobalAveragePool", self.node("Conv", y, self.weight(3, _WIDTH)))
        self.nodes.append(helper.make_node("Flatten", [pooled], ["y"], "head"))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, _SIZE, _SIZE])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
        graph = helper.make_graph(self.nodes, "graph", [x], [out], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def relu(nodes: int) -> onnx.ModelProto:
    """A chain of Relu between two convolutions."""
    g = _Graph()
    h = g.conv("x", 3)
    while len(g.nodes) < nodes - 4:
        h = g.node("Relu", h)
    return g.model(g.conv(h))


def conv(nodes: int) -> onnx.ModelProto:
    """A chain of Conv and Relu."""
    g = _Graph()
    h = g.conv("x", 3)
    while len(g.nodes) < nodes - 4:
        h = g.conv(g.node("Relu", h))
    return g.model(h)


def residual(nodes: int) -> onnx.ModelProto:
    """Residual blocks: one stream that every block reads and adds to."""
    g = _Graph()
    h = g.conv("x", 3)
    while len(g.nodes) < nodes - 7:
        h = g.node("Add", h, g.conv(g.node("Relu", g.conv(h)), scale=4 / nodes))
    return g.model(h)


def fan(nodes: int) -> onnx.ModelProto:
    """One tensor that many convolutions read; their results are added up."""
    g = _Graph()
    wide = g.node("Relu", g.conv("x", 3))
    total = g.conv(wide)
    while len(g.nodes) < nodes - 4:
        total = g.node("Add", total, g.conv(wide, scale=2 / nodes))
    return g.model(total)


def bodies(nodes: int) -> onnx.ModelProto:
    """If nodes along one stream, two convolutions in each branch; their results are added to it."""
    g = _Graph()
    h = g.conv("x", 3)
    yes = g.node("Greater", g.node("ReduceMax", "x", keepdims=0), g.node("ReduceMin", "x", keepdims=0))
    count = 0
    while len(g.nodes) + count < nodes - 9:
        branches = {}
        for key in ("then_branch", "else_branch"):
            inner, prefix = _Graph(), f"b{count}_{key[0]}"
            inner.random = g.random
            # Bodies are folded without being run: in a chain of them, what every fold gains or loses would multiply.
            names = [inner.weight(_WIDTH, _WIDTH, s, f"{prefix}_w{i}") for i, s in enumerate((1.0, 4 / nodes))]
            parts = [("Conv", [h, names[0]]), ("Relu", [f"{prefix}_0"]), ("Conv", [f"{prefix}_1", names[1]])]
            inner.nodes = [
                helper.make_node(op, inputs, [f"{prefix}_{i}"], f"{prefix}_{i}") for i, (op, inputs) in enumerate(parts)
            ]
            shape = ["n", _WIDTH, _SIZE, _SIZE]
            out = helper.make_tensor_value_info(f"{prefix}_2", TensorProto.FLOAT, shape)
            branches[key] = helper.make_graph(inner.nodes, prefix, [], [out], inner.weights)
        h = g.node("Add", h, g.node("If", yes, **branches))
        count += 6
    return g.model(g.conv(h))


GRAPHS: dict[str, Callable[[int], onnx.ModelProto]] = {f.__name__: f for f in (relu, conv, residual, fan, bodies)}


def measure(path: Path, work: str, limit: float) -> tuple[float, float] | str:
    """Return seconds and peak memory in GiB of a process that does the work, or in words why there are none."""
    command = [sys.executable, "-c", _CHILD.format(work=_WORK[work]), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"> {limit:.0f} s"
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return "failed"
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def main() -> None:
    """Measure every cell and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--work", nargs="+", choices=_WORK, default=list(_WORK))
    parser.add_argument("--limit", type=float, default=3600.0)
    parser.add_argument("--out", type=Path, default=_PAGE)
    args = parser.parse_args()
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        for name in args.graphs:
            paths = {}
            for nodes in args.nodes:
                paths[nodes] = Path(folder) / f"{name}_{nodes}.onnx"
                onnx.save(GRAPHS[name](nodes), paths[nodes])
            for work in args.work:
                cells: list[tuple[float, float] | str] = []
                for nodes in args.nodes:
                    stopped = bool(cells) and isinstance(cells[-1], str)
                    cells.append("" if stopped else measure(paths[nodes], work, args.limit))
                    print(name, work, nodes, cells[-1], flush=True)
                rows.append((name, work, cells))
                failed |= not _is_done(work, dict(zip(args.nodes, cells, strict=True)))
    args.out.write_text(_page(args.nodes, rows))
    sys.exit(failed)


def _is_done(work: str, cells: dict[int, tuple[float, float] | str]) -> bool:
    if any(isinstance(cell, str) for cell in cells.values()):
        return False
    small, large = cells.get(1000), cells.get(10_000)
    return work == "inspect" or not (isinstance(small, tuple) and isinstance(large, tuple)) or large[0] <= 10 * small[0]


def _page(sizes: list[int], rows: list[tuple[str, str, list[tuple[float, float] | str]]]) -> str:
    head = ["graph", "work", *(f"{n:,} nodes" for n in sizes), *(f"{b:,} / {a:,}" for a, b in pairwise(sizes))]
    lines = ["# Time over the number of nodes", "", "Processor seconds, and peak memory of the process. The last "
             "columns are the growth of the time. Written by `python -m benchmarks.graph_size` on "
             f"{time.strftime('%Y-%m-%d')}.", ""]  # fmt: skip
    lines += [f"- `{name}`: {(f.__doc__ or '').splitlines()[0]}" for name, f in GRAPHS.items()]
    lines += ["", "| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (2 * len(sizes) - 1)]
    for name, work, cells in rows:
        shown = [c if isinstance(c, str) else f"{c[0]:.1f} s, {c[1]:.2f} GiB" for c in cells]
        growth = [
            f"{b[0] / a[0]:.1f}" if isinstance(a, tuple) and isinstance(b, tuple) else "" for a, b in pairwise(cells)
        ]
        lines.append("| " + " | ".join([name, work, *shown, *growth]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
