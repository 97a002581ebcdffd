"""Accuracy of folded networks: every method, partition, repair, allocation and sparsity, on the test images.

Usage: python -m benchmarks.accuracy --data DIR --models DIR [--models DIR] --out DIR [--page FILE.md]
           [--only SECTION ...] [--networks GLOB ...] [--images N] [--quick] [--resume [same|any]]

DIR with data holds the Fashion-MNIST idx files, cifar10_test.npz and cifar10_train_first5k.npz. DIR with models holds
networks named <family>_w<width>[_<penalty>]_<cifar10|fashion>_<bn|fused>.onnx, as `benchmarks.training.cifar10` and
`benchmarks.training.fashion` write them; the bundled LeNets always take part. DIR for output gets accuracy.json and
accuracy.csv, written row by row, figures/*.png, and the page accuracy.md unless --page names another.

Deep inversion is the same for all folds of a network with one seed, so its inputs are made once and kept in
OUT/inputs; tables give the time of generating and of folding, and their sum is what one fold takes.

Sections: bars curves defaults methods clusterings wider regularised last-stages variance correlation latency cost.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.accuracy import cells, cost, figures
from benchmarks.accuracy.correlation import cluster_correlations
from benchmarks.accuracy.folded import FoldedNetwork, fold_of
from benchmarks.accuracy.measure import Measurement
from benchmarks.accuracy.networks import Images, Network, find_networks, test_images
from benchmarks.accuracy.page import render
from benchmarks.accuracy.store import Row, Store
from benchmarks.accuracy.variance import variance_ratios
from benchmarks.latency import timing
from onnxfold.config import FoldConfig

TEST_IMAGES = 10_000
#: What --quick asks for.
QUICK_IMAGES = 500
QUICK_SPARSITY = 0.5
QUICK_ROUNDS = 10
#: Images on which layers are compared.
LAYER_IMAGES = 512

OfLayers = Callable[[FoldedNetwork, Images], Sequence[tuple[Any, ...]]]
#: Sections on the layers of folds: their cells, and the figures of each layer.
LAYER_SECTIONS: dict[str, tuple[Callable[[list[Network]], list[cells.Cell]], OfLayers]] = {
    "variance": (cells.variance, variance_ratios),
    "correlation": (cells.correlation, cluster_correlations),
}
OTHER_SECTIONS = (*LAYER_SECTIONS, "latency", "cost")


def main() -> int:
    """Measure what is missing, then write page and figures."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="the Markdown page; OUT/accuracy.md if not given")
    sections = (*cells.SECTIONS, *OTHER_SECTIONS)
    parser.add_argument("--only", nargs="+", choices=sections, default=sections, metavar="SECTION")
    parser.add_argument("--networks", nargs="+", default=["*"], metavar="GLOB", help="only networks of these names")
    parser.add_argument("--images", type=int, help=f"test images, {TEST_IMAGES} if not given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_IMAGES} images, sparsity {QUICK_SPARSITY} only")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="same",
        default="",
        choices=("same", "any"),
        help="keep rows that the same code measured before, or rows of any code",
    )
    args = parser.parse_args()
    networks = [n for n in find_networks(args.models) if any(fnmatchcase(n.name, g) for g in args.networks)]
    images = args.images or (QUICK_IMAGES if args.quick else TEST_IMAGES)
    try:
        store = Store(args.out, resume=args.resume, images=images)
    except FileExistsError as error:
        parser.error(str(error))
    bench = Measurement(networks, args.data, store, args.out / "inputs")
    for section in sections:
        if section in args.only:
            run(section, bench, networks, args.out, quick=args.quick)
            store.add("sections", section, {})
    page = args.page or args.out / "accuracy.md"
    drawn = figures.draw(store, networks, args.out / "figures")
    page.write_text(render(store, networks, page.parent, drawn), encoding="utf-8")
    print(f"wrote {page}")
    return 0


def run(section: str, bench: Measurement, networks: list[Network], out: Path, *, quick: bool) -> None:
    """Measure one section."""
    if section in cells.SECTIONS:
        asked = [c for c in cells.SECTIONS[section](networks) if not quick or c.sparsity == QUICK_SPARSITY]
        for i, cell in enumerate(asked):
            tell(section, i, len(asked), bench.cell(cell))
    elif section in LAYER_SECTIONS:
        of_networks, of_layers = LAYER_SECTIONS[section]
        for cell in (c for c in of_networks(networks) if not quick or c.sparsity == QUICK_SPARSITY):
            row = _once(bench.store, section, cell.key, partial(_layers, bench, cell, of_layers))
            print(f"{section}: {cell.network} {cell.method} {cell.sparsity:g}: last layer {row['layers'][-1][1]:.3f}")
    elif section == "latency":
        _latency(bench.store, networks, quick=quick)
    else:
        _cost(bench.store, networks, out, quick=quick)


def tell(section: str, done: int, total: int, row: Row) -> None:
    """Print one line on a row."""
    what = " ".join(str(row[n]) for n in ("network", "method", "cluster", "repair", "allocation", "inputs") if row[n])
    result = row["error"] or f"{row['accuracy']:.2%} of {row['dense']:.2%}, {row['removed']:.1%} removed"
    seconds = f", {row['generation_s']} + {row['fold_s']} s" if not row["error"] else ""
    print(f"{section} {done + 1}/{total}: {what} {row['sparsity']:g} seed {row['seed']}: {result}{seconds}", flush=True)


def _layers(bench: Measurement, cell: cells.Cell, of_layers: OfLayers) -> Row:
    """Return the accuracy of a fold, and what it says of each layer."""
    network = bench.networks[cell.network]
    images, _ = test_images(bench.data, network)
    config = FoldConfig(**bench.options(cell))
    chosen, _ = bench.shared_inputs(cell, config)
    fold = fold_of(network, config, None if chosen is None else chosen.inputs)
    layers = of_layers(fold, images[: min(LAYER_IMAGES, len(images))])
    return {**asdict(cell), "accuracy": bench.cell(cell)["accuracy"], "layers": [list(r) for r in layers]}


def _latency(store: Store, networks: list[Network], *, quick: bool) -> None:
    sparsities = (QUICK_SPARSITY,) if quick else timing.SPARSITIES
    rounds = QUICK_ROUNDS if quick else timing.ROUNDS
    for network in cells.main_networks(networks):
        if network.form == "bn" and f"{network.name.removesuffix('bn')}fused" in {n.name for n in networks}:
            continue  # onnxruntime fuses BatchNormalization: both files run alike
        _once(
            store,
            "latency",
            network.name,
            lambda path=network.path: {"choices": timing.measure(path, sparsities, rounds=rounds)},  # type: ignore[misc]
        )
        print(f"latency: {network.name}", flush=True)


def _cost(store: Store, networks: list[Network], out: Path, *, quick: bool) -> None:
    for network in cost.networks(networks, out / "inputs"):
        for inputs, allocation in cost.CHOICES[:1] if quick else cost.CHOICES:

            def measure(network: Network = network, inputs: str = inputs, allocation: str = allocation) -> Row:
                asked = {"network": network.name, "inputs": inputs, "allocation": allocation}
                return asked | cost.measure(network.path, inputs, allocation)

            row = _once(store, "cost", f"{network.name}|{inputs}|{allocation}", measure)
            print(f"cost: {network.name} {inputs} {allocation}: {row['seconds']} s, {row['extra_mib']} MiB", flush=True)


def _once(store: Store, kind: str, key: str, measure: Callable[[], Row]) -> Row:
    return store.get(kind, key) or store.add(kind, key, measure())


if __name__ == "__main__":
    sys.exit(main())
