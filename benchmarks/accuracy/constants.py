"""Sensitivity of fold-ls to its constants, on training images, never on test images.

Usage: python -m benchmarks.accuracy.constants --data DIR --out DIR [--models DIR ...] [--networks GLOB ...]
           [--sparsity 0.5 0.7] [--constants MERGE_CHARGE] [--factors 0.67 1]

Prints one line per network, constant and factor. Constants were chosen on the ResNet18s for CIFAR-10 and Fashion-MNIST;
other networks, the bundled LeNets and VGG11 by default, tell whether they hold elsewhere.
"""

import argparse
from fnmatch import fnmatchcase
from pathlib import Path

import onnxfold.cluster.clusterings.elimination
import onnxfold.passes.repair.compensate
from benchmarks.accuracy.cells import Cell
from benchmarks.accuracy.measure import Measurement, accuracy
from benchmarks.accuracy.networks import find_networks, labelled_train_images
from benchmarks.accuracy.store import Store
from onnxfold.api import fold_request
from onnxfold.config import FoldConfig

TRAIN_IMAGES = 5000
FACTORS = (1 / 3, 1.0, 3.0)
CONSTANTS = (
    (onnxfold.passes.repair.compensate, "RIDGE"),
    (onnxfold.passes.repair.compensate, "TAP_RIDGE"),
    (onnxfold.cluster.clusterings.elimination, "MERGE_CHARGE"),
    (onnxfold.cluster.clusterings.elimination, "RIDGE"),
)


def main() -> None:
    """Measure every constant times every factor, all others as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, action="append", default=[])
    parser.add_argument("--out", type=Path, required=True, help="where inverted images are kept")
    parser.add_argument("--networks", nargs="+", default=["lenet5_2x", "vgg11_bn_w0.5_*_bn"], metavar="GLOB")
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.5, 0.7])
    names = list(dict.fromkeys(name for _, name in CONSTANTS))  # two modules have a RIDGE: both are meant
    parser.add_argument("--constants", nargs="+", default=names, choices=names)
    parser.add_argument("--factors", nargs="+", type=float, default=FACTORS)
    args = parser.parse_args()
    networks = [n for n in find_networks(args.models) if any(fnmatchcase(n.name, g) for g in args.networks)]
    bench = Measurement(networks, args.data, Store(args.out, resume="any", images=TRAIN_IMAGES), args.out / "inputs")
    for network in networks:
        images, labels = labelled_train_images(args.data, network, TRAIN_IMAGES)
        for sparsity in args.sparsity:
            cell = Cell(network=network.name, sparsity=sparsity)
            config = FoldConfig(**bench.options(cell))
            inputs, _ = bench.shared_inputs(cell, config)
            for module, name in (row for row in CONSTANTS if row[1] in args.constants):
                chosen = getattr(module, name)
                found = []
                for factor in args.factors:
                    setattr(module, name, chosen * factor)
                    result = fold_request(network.path, config, run_on=inputs)
                    found.append(accuracy(result.model, images, labels))
                setattr(module, name, chosen)
                values = ", ".join(f"{chosen * f:.2g}: {a:.2%}" for f, a in zip(args.factors, found, strict=True))
                print(f"{network.name} {sparsity:g} {name.removeprefix('_')}: {values}", flush=True)


if __name__ == "__main__":
    main()
