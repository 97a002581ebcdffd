"""The paper's convolutional networks at the paper's size, the headline network beside published data-free systems.

Usage: python -m benchmarks.paper --data DIR --models DIR [--networks NAME ...] [--systems NAME ...]
           [--only REMOVED ...] [--resume] [--page FILE.md]

DIR with data holds ``cifar10_test.npz``; DIR with models holds networks and the logs of their training, as
``python -m benchmarks.training.cifar10 --epochs 50 --bfloat16 --device cuda`` writes them with ``--net resnet18 --width
64 --muon 0.03`` and with ``--net vgg11_bn --width 1 --muon 0.02``. resnet18_sgd_w64_cifar10 is what ``--net resnet18
--width 64 --epochs 40`` writes without ``--muon``, by another name. Images that are inverted for
the first cell of a system wait in a cache for the others. Rows stand beside the page; those of a network that is not
asked for stay.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import onnxfold
from benchmarks.coverage.text import table_row
from benchmarks.datasets import cifar10
from benchmarks.imagenet import Images, Labels, answers
from onnxfold.files import write

RESNET = "resnet18_w64_cifar10"
#: Titles by the name of a network.
NETWORKS = {
    RESNET: "ResNet18 for CIFAR-10 at full width",
    "resnet18_sgd_w64_cifar10": "The same network, trained by SGD",
    "vgg11_bn_w1_cifar10": "VGG11 for CIFAR-10 at full width",
}
SPARSITIES = (0.1, 0.25, 0.5, 0.7)
#: Points of the ResNet18 as they were published at these sparsities, the accuracy of the whole network, and the time.
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
    "`fold --refine --torch-device cuda`": _BYTES | {"refine": "all", "torch_device": "cuda"},
    **{
        f"`fold --method {method} --allocation uniform`": {"method": method, "allocation": "uniform"}
        for method in ("fold-dir", "fold-ar", "fold-naive", "ifm", "inn", "prune-l2", "prune-l1")
    },
}
_HEAD = """# The paper's networks at the paper's size

Reproduce with `python -m benchmarks.paper --data DATA --models MODELS --page PAGE`. Points are lost on the 10,000 test
images from each system's own whole network. No data. Two of our rows spend all accuracy on weights (`--objective
weights --round-to 1`); the others are published methods, with the same share of each layer removed, which bear the
weights of another training better (docs/measurements.md). Seconds are those of a whole fold on two cores. Images are
inverted at 70 % of the closed form, and more of them at 70 % of the refinement; other cells take them from a cache.
"""
_SECTION = """
## {title}

{parameters:,} weights, trained by `python -m benchmarks.training.cifar10` with `{recipe}`
and seed {seed} in {seconds:.0f} s: {dense:.2f} %.{published}

"""
#: The paper's figures and tables, and the place of each here: a page and a heading of it.
FIGURES = (
    ("Figures 1 and 4: accuracy and variance ratios", "paper_figures.md", "Variance ratio per layer, and accuracy"),
    ("Figure 3: correlation of matched channels", "paper_figures.md", "Correlation of the channels of a cluster"),
    ("Figure 5: clusterings with statistics of data", "paper_figures.md", "Partitions with the same repair"),
    ("Figures 6 and 7: data-free methods, IFM, L1 and L2", "paper.md", NETWORKS[RESNET]),
    (
        "Figure 8: IFM and INN, the last blocks only", "paper_figures.md",
        "Only the last two stages folded (columns: fraction of their channels)",
    ),
    ("Figures 9 and 13: wider networks", "paper_figures.md", "The same layout in several widths"),
    ("Figure 12: penalties on the weights", "paper_figures.md", "Networks trained with a penalty on the weights"),
    ("Tables 1 and 2: merging", "merging.md", ""),
    ("Table 3: language models", "zero_shot.md", ""),
    ("Table 5: distillation", "paper.md", NETWORKS[RESNET]),
    ("Table 6: devices", "edge.md", ""),
)  # fmt: skip
_FIGURES_HEAD = """
## The paper's figures and tables

[paper_figures.md](paper_figures.md) is written by `python -m benchmarks.accuracy --images 2000 --only clusterings
last-stages variance correlation wider regularised`, of the networks above and of smaller ones; the docstring of
`benchmarks.training.cifar10` has the recipe of each.

"""
_PUBLISHED = """ The network of the published rows has 94.72 %.

![Points lost over seconds](figures/paper_seconds.svg)

The figure is drawn by `python -m benchmarks.paper_seconds`."""


def _cuda_device() -> str:
    """Return the name of the CUDA device that torch computes on, "" without one."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def measure(path: Path, sparsity: float, options: dict[str, Any], images: Images, labels: Labels) -> dict[str, Any]:
    """Return the accuracy of a fold in percent, and its seconds."""
    began = time.perf_counter()
    result = onnxfold.fold(path, sparsity, verify=False, **options)
    seconds = time.perf_counter() - began
    record = result.report.refinement
    return {
        "top1": 100 * float((answers(result.model, images) == labels).mean()),
        "machine": _cuda_device() if options.get("torch_device") == "cuda" else "2 cores",
        "removed": result.report.sparsity,
        "seconds": round(seconds),
        "steps": 0 if record is None else record.steps,
    }


def table(network: str, kept: dict[str, Any]) -> str:
    """Return the part of the page on one network: the rows that were measured, and a note on them if there is one."""
    log, rows = kept["training"], kept["rows"]
    recipe, dense = log["recipe"], 100 * log["test_accuracy_bn"]
    flags = [f"--{name}" for name in ("bfloat16", "progressive") if recipe[name]]
    flags += [f"--muon {recipe['muon']:g}"] if recipe["muon"] else []
    flags += ["--device cuda"] if recipe["device"] == "cuda" else []
    published = PUBLISHED if network == RESNET else {}
    head = _SECTION.format(
        title=NETWORKS[network],
        parameters=log["parameters"],
        recipe=" ".join([f"--epochs {recipe['epochs']}", *flags]),
        seed=recipe["seed"],
        seconds=log["seconds"],
        dense=dense,
        published=_PUBLISHED if published else "",
    )
    columns = ["system", *(f"{s:.0%} removed" for s in SPARSITIES), "time"]
    lines = [columns, ["---"] * len(columns)]
    for name, (points, whole, needed) in published.items():
        lines.append([f"{name}, published", *(f"{p:.2f} ({p - whole:+.2f})" for p in points), needed])
    for name in OURS:
        measured = [rows.get(f"{name}:{sparsity:g}") for sparsity in SPARSITIES]
        cells = [
            "" if row is None else f"{row['top1']:.2f} ({row['top1'] - dense:+.2f}), {row['seconds']} s"
            for row in measured
        ]
        machines = dict.fromkeys(row["machine"] for row in measured if row)
        if machines:
            lines.append([name, *cells, ", ".join(machines)])
    note = f"\n{kept['note']}\n" if "note" in kept else ""
    return head + "\n".join(map(table_row, lines)) + "\n" + note


def figures() -> str:
    """Return the part of the page that says where the paper's figures and tables are."""
    lines = [["in the paper (arXiv 2502.10216)", "here"], ["---", "---"]]
    for name, page, heading in FIGURES:
        anchor = "-".join(re.sub(r"[^a-z0-9 -]", "", heading.lower()).split())
        lines.append([name, f"[{heading or page}]({page}{'#' if heading else ''}{anchor})"])
    return _FIGURES_HEAD + "\n".join(map(table_row, lines)) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep rows as they are done, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS, metavar="NAME")
    parser.add_argument("--systems", nargs="+", choices=OURS, metavar="NAME", help="rows; without CUDA, all without it")
    parser.add_argument("--only", type=float, nargs="+", default=SPARSITIES, metavar="REMOVED")
    parser.add_argument("--resume", action="store_true", help="keep rows that an earlier run wrote of these networks")
    parser.add_argument("--page", type=Path, default=Path("benchmarks/paper.md"))
    options = parser.parse_args(arguments)
    store = options.page.with_suffix(".json")
    kept: dict[str, Any] = json.loads(store.read_text()) if store.is_file() else {}
    without = {name for name, asked in OURS.items() if asked.get("torch_device") == "cuda" and not _cuda_device()}
    systems = options.systems or [name for name in OURS if name not in without]
    images, small = cifar10.load_test(options.data)
    labels = small.astype("int64")
    for network in options.networks:
        path = options.models / f"{network}_bn.onnx"
        log = json.loads((options.models / f"{network}.json").read_text())
        training = {key: log[key] for key in ("recipe", "seconds", "parameters", "test_accuracy_bn", "history")}
        if not options.resume or kept.get(network, {}).get("training") != training:
            kept[network] = {"training": training, "rows": {}}
        rows = kept[network]["rows"]
        with tempfile.TemporaryDirectory() as cache:
            for name in systems:
                for sparsity in sorted(options.only, reverse=True):
                    key = f"{name}:{sparsity:g}"
                    if key in rows:
                        continue
                    rows[key] = measure(path, sparsity, OURS[name] | {"cache": cache}, images, labels)
                    print(network, key, rows[key], flush=True)
                    write({store: f"{json.dumps(kept, indent=1)}\n".encode()})
    write({options.page: (_HEAD + "".join(table(n, kept[n]) for n in NETWORKS if n in kept) + figures()).encode()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
