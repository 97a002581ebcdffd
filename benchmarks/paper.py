"""The paper's headline network at the paper's size, beside published data-free systems.

Usage: python -m benchmarks.paper --data DIR --models DIR [--only REMOVED ...] [--resume] [--page FILE.md]

DIR with data holds ``cifar10_test.npz``; DIR with models holds the network and the log of its training, as
``python -m benchmarks.training.cifar10 --net resnet18 --width 64 --epochs 12 --bfloat16 --muon --threads 2`` writes
them. Images that are inverted for the first cell of a system wait in a cache for the others.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxfold
from benchmarks.coverage.text import table_row
from benchmarks.datasets import cifar10
from benchmarks.imagenet import Images, Labels, answers
from onnxfold.files import write

NETWORK = "resnet18_w64_cifar10"
SPARSITIES = (0.1, 0.25, 0.5, 0.7)
#: Points of accuracy as they were published at these sparsities, the accuracy of the whole network, and the time.
PUBLISHED = {
    "model folding (arXiv 2502.10216)": ((94.0, 92.0, 88.0, 82.0), 94.72, "55 s, A100"),
    "DAFL": ((71.73, 77.80, 68.06, 53.86), 94.72, "hours, A100"),
    "DFAD": ((93.79, 93.52, 92.04, 89.67), 94.72, "2 h, A100"),
    "ABM": ((93.30, 91.99, 89.42, 85.43), 94.72, "13 to 17 h, A100"),
    "SpaceshipNet": ((94.50, 93.95, 92.96, 91.53), 94.72, "27 to 43 h, A100"),
}
_BYTES = {"objective": "weights", "round_to": 1}
#: Our systems by name, and the options of a fold.
OURS: dict[str, dict[str, Any]] = {
    "`fold`, closed form": _BYTES,
    "`fold --refine`": _BYTES | {"refine": "all"},
    **{
        f"`fold --method {method} --allocation uniform`": {"method": method, "allocation": "uniform"}
        for method in ("fold-dir", "fold-ar", "fold-naive", "ifm", "prune-l2", "prune-l1")
    },
}
#: What a recipe may have, as the options of the training are called.
_FLAGS = ("bfloat16", "muon", "progressive")
_HEAD = """# The paper's network at the paper's size

Reproduce with `python -m benchmarks.paper --data DATA --models MODELS --page PAGE`. ResNet18 for CIFAR-10 at full
width, {parameters:,} weights, trained by `python -m benchmarks.training.cifar10` with `{recipe}` in {minutes:.0f}
minutes on two cores: {dense:.2f} % on the 10,000 test images. Points are lost from each system's own whole network, of
which the published ones have 94.72 %. No data. Two of our rows spend all accuracy on weights (`--objective weights
--round-to 1`); the others are published methods, with the same share of each layer removed, which bear the weights of
another training better (docs/measurements.md). Seconds are those of a whole fold on two cores. Images are inverted at
70 % of the closed form, and more of them at 70 % of the refinement; other cells take them from a cache.

"""


def measure(path: Path, sparsity: float, options: dict[str, Any], images: Images, labels: Labels) -> dict[str, Any]:
    """Return the accuracy of a fold in percent, and its seconds."""
    began = time.perf_counter()
    result = onnxfold.fold(path, sparsity, verify=False, **options)
    seconds = time.perf_counter() - began
    record = result.report.refinement
    return {
        "top1": 100 * float((answers(result.model, images) == labels).mean()),
        "removed": result.report.sparsity,
        "seconds": round(seconds),
        "steps": 0 if record is None else record.steps,
    }


def page(rows: dict[str, dict[str, Any]], log: dict[str, Any]) -> str:
    """Return the page, with the rows that were measured."""
    recipe = log["recipe"]
    flags = [f"--{name}" for name in _FLAGS if recipe[name]]
    head = _HEAD.format(
        parameters=log["parameters"], recipe=" ".join([f"--epochs {recipe['epochs']}", *flags]),
        minutes=log["seconds"] / 60, dense=100 * log["test_accuracy_bn"],
    )  # fmt: skip
    columns = ["system", *(f"{s:.0%} removed" for s in SPARSITIES), "time"]
    lines = [columns, ["---"] * len(columns)]
    for name, (points, whole, needed) in PUBLISHED.items():
        lines.append([f"{name}, published", *(f"{p:.2f} ({p - whole:+.2f})" for p in points), needed])
    dense = 100 * log["test_accuracy_bn"]
    for name in OURS:
        cells = []
        for sparsity in SPARSITIES:
            row = rows.get(f"{name}:{sparsity:g}")
            text = "" if row is None else f"{row['top1']:.2f} ({row['top1'] - dense:+.2f}), {row['seconds']} s"
            cells.append(text)
        lines.append([name, *cells, "2 cores"])
    return head + "\n".join(map(table_row, lines)) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep rows as they are done, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", type=float, nargs="+", default=SPARSITIES, metavar="REMOVED")
    parser.add_argument("--resume", action="store_true", help="keep rows that an earlier run wrote of this network")
    parser.add_argument("--page", type=Path, default=Path("benchmarks/paper.md"))
    options = parser.parse_args(arguments)
    store, path = options.page.with_suffix(".json"), options.models / f"{NETWORK}_bn.onnx"
    log = json.loads((options.models / f"{NETWORK}.json").read_text())
    training = {key: log[key] for key in ("recipe", "seconds", "parameters", "test_accuracy_bn", "history")}
    kept = json.loads(store.read_text()) if options.resume and store.is_file() else {}
    rows: dict[str, Any] = kept["rows"] if kept.get("training") == training else {}
    images, small = cifar10.load_test(options.data)
    labels = small.astype("int64")
    with tempfile.TemporaryDirectory() as cache:
        for name, asked in OURS.items():
            for sparsity in sorted(options.only, reverse=True):
                key = f"{name}:{sparsity:g}"
                if key in rows:
                    continue
                rows[key] = measure(path, sparsity, asked | {"cache": cache}, images, labels)
                print(key, rows[key], flush=True)
                write({store: f"{json.dumps({'training': training, 'rows': rows}, indent=1)}\n".encode()})
    write({options.page: page(rows, log).encode()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
