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
from itertools import pairwise
from pathlib import Path

import onnx

from testing.long_graphs import GRAPHS

_PAGE = Path(__file__).with_suffix(".md")
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


def measure(path: Path, code: str, limit: float) -> tuple[float, float] | str:
    """Return processor seconds and peak memory in GiB of code that knows `path`, or in words why there are none."""
    command = [sys.executable, "-c", _CHILD.format(work=code), str(path)]
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
                    cells.append("" if stopped else measure(paths[nodes], _WORK[work], args.limit))
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
