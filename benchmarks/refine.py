"""Effect of `--refine`: accuracy of the closed form, and after a refinement, without data.

Usage: python -m benchmarks.refine --data DIR --models DIR [--only NAME:SPARSITY ...] [--real] [--resume]
           [--page FILE.md]

DIR with data holds the test sets of CIFAR-10 and Fashion-MNIST and ``imagenet_even_500.zip``; DIR with models the files
that are named here, those of EfficientNet-Lite1 from `benchmarks.training.efficientnet_lite`. Of ImageNet, accuracy is
measured on the 250 images whose classes are no multiples of 4. With --real, the same folds are given 250 real images,
without labels, that are not tested: of ImageNet the other 250. Every row is kept beside the page when it is done.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxfold
from benchmarks.coverage.text import table_row
from benchmarks.datasets import cifar10, fashion_mnist, imagenet_even
from benchmarks.imagenet import Images, Labels, answers
from onnxfold.files import write

_CIFAR, _WIDE, _MOBILE = (0.3, 0.5), (0.7, 0.85, 0.9), (0.2, 0.4)
#: Networks by file name: the test set, sparsities, and whether choices of the method looked at them.
NETWORKS: dict[str, tuple[str, tuple[float, ...], bool]] = {
    "resnet18_w32_cifar10_bn": ("cifar10", _WIDE, True),
    "resnet18_w32_cifar10_fused": ("cifar10", _WIDE, True),
    "resnet18_w32_fashion_bn": ("fashion", _WIDE, True),
    "efficientnet_lite1_imagenet_fused": ("imagenet 240", (0.2, 0.3, 0.4), True),
    "efficientnet_lite1_imagenet_bn": ("imagenet 240", (0.2, 0.3, 0.4), True),
    "resnet32_cifar10_bn": ("cifar10", _CIFAR, False),
    "resnet32_cifar10_fused": ("cifar10", _CIFAR, False),
    "resnet44_cifar10_bn": ("cifar10", _CIFAR, False),
    "resnet44_cifar10_fused": ("cifar10", _CIFAR, False),
    "mobilenet_v1_075_192_imagenet_fused": ("imagenet 192", _MOBILE, False),
}
_HEAD = """# Refinement without data

Reproduce with `python -m benchmarks.refine --data DATA --models MODELS --page PAGE`. Top-1 of networks that are folded
at defaults, and of the same folds with `--refine`: no data, no labels, the fold's own inputs. *Choices*: whether those
of the method looked at the network; the others judge it. Seconds are those of the refinement on the machine that ran
it, which had other work at times. Tests of ImageNet are 250 images: a standard error of 2.6 points. Rows are of one
seed; that of MobileNetV1 was between 61.6 % and 66.0 % in runs whose inputs differed by rounding only. *250 real
images*: the same folds, given images without labels that are not tested (with `--real`). Points lost over seconds
beside published systems are a figure of [paper.md](paper.md#resnet18-for-cifar-10-at-full-width).

"""
_COLUMNS = ["network", "choices", "removed", "dense", "closed form", "refined", "held-out loss", "steps", "s"]
_REAL_COLUMNS = ["250 real images", "refined on them"]
#: Ending of the key of the cells of a row that are measured on real images, and how many of these.
_REAL, _GIVEN = ":real", 250


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep rows as they are done, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, nargs="+", required=True)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME:SPARSITY", help="only these cells")
    parser.add_argument("--real", action="store_true", help="measure folds that are given 250 real images")
    parser.add_argument("--resume", action="store_true", help="keep rows that an earlier run wrote")
    parser.add_argument("--page", type=Path, default=Path("benchmarks/refine.md"))
    options = parser.parse_args(arguments)
    store = options.page.with_suffix(".json")
    rows: dict[str, list[str]] = json.loads(store.read_text()) if options.resume and store.is_file() else {}
    for name, (kind, sparsities, chosen) in NETWORKS.items():
        path = next((p for folder in options.models if (p := folder / f"{name}.onnx").is_file()), None)
        for sparsity in sparsities:
            cell = f"{name}:{sparsity:g}"
            key = f"{cell}{_REAL}" if options.real else cell
            if path is None or key in rows or (options.only and cell not in options.only):
                continue
            test = _test_set(kind, options.data)
            if options.real:
                rows[key] = measure(path, sparsity, *test, _given_images(kind, options.data))[2:4]
            else:
                rows[key] = [name, "looked at" if chosen else "judges", *measure(path, sparsity, *test)]
            print(table_row(rows[key]), flush=True)
            write({store: f"{json.dumps(rows, indent=1)}\n".encode()})
    order = [key for name, (_, s, _) in NETWORKS.items() for value in s if (key := f"{name}:{value:g}") in rows]
    columns = [*_COLUMNS, *_REAL_COLUMNS]
    cells = ([*rows[key], *rows.get(key + _REAL, [""] * len(_REAL_COLUMNS))] for key in order)
    lines = [table_row(line) for line in (columns, ["---"] * len(columns), *cells)]
    write({options.page: (_HEAD + "\n".join(lines) + "\n").encode()})
    return 0


def measure(
    path: Path, sparsity: float, images: Images, labels: Labels, calibration: Images | None = None
) -> list[str]:
    """Return the cells of a fold and of its refinement, without data or on images without labels."""
    shared: dict[str, Any] = {"verify": False}
    if calibration is not None:
        shared["calibration"] = {onnx.load(path).graph.input[0].name: calibration}
    models = [onnx.load(path), onnxfold.fold(path, sparsity, **shared).model]
    result = onnxfold.fold(path, sparsity, refine="all", **shared)
    record = result.report.refinement
    assert record is not None
    top1 = [f"{float((answers(model, images) == labels).mean()):.2%}" for model in (*models, result.model)]
    loss = f"{record.loss_before:.3g} -> {record.loss_after:.3g}" + ("" if record.kept else ", undone")
    return [f"{result.report.sparsity:.1%}", *top1, loss, str(record.steps), f"{record.seconds:.0f}"]


def _test_set(kind: str, folder: Path) -> tuple[Images, Labels]:
    if kind.startswith("imagenet"):
        size = int(kind.split()[1])
        images, labels = imagenet_even.load(folder, size)
        judged = ~imagenet_even.is_tuning(labels)
        # The scores of MobileNetV1 begin with a class for the background.
        return images[judged], labels[judged] + (size == 192)
    if kind == "cifar10":
        images, small = cifar10.load_test(folder)
        return images, small.astype(np.int64)
    pixels, small = fashion_mnist.load_split(folder, "test")
    return fashion_mnist.preprocess(pixels), small.astype(np.int64)


def _given_images(kind: str, folder: Path) -> Images:
    """Return real images that are not tested."""
    if kind.startswith("imagenet"):
        images, labels = imagenet_even.load(folder, int(kind.split()[1]))
        return images[imagenet_even.is_tuning(labels)]
    if kind == "cifar10":
        return cifar10.load_train_first5k(folder)[0][:_GIVEN]
    return fashion_mnist.preprocess(fashion_mnist.load_split(folder, "train")[0][:_GIVEN])


if __name__ == "__main__":
    sys.exit(main())
