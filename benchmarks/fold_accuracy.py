"""Accuracy of folded reference networks on the 10,000 test images.

Usage: python -m benchmarks.fold_accuracy --data DIR --models DIR [--method fold-ar ...] [--sparsity 0.5 ...]

DIR with data holds Fashion-MNIST idx files and cifar10_test.npz; DIR with models holds
resnet18_w32_{fashion,cifar10}_{bn,fused}.onnx.
"""

import argparse
import time
from pathlib import Path

import onnxfold
from benchmarks import cifar10, fashion_mnist
from onnxfold.graph.tensors import Array

DATASETS = ("fashion", "cifar10")


def main() -> None:
    """Print one line per network, method and sparsity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--method", nargs="+", default=["fold-ar", "fold-naive"])
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.5, 0.7])
    parser.add_argument("--form", nargs="+", default=["bn", "fused"])
    args = parser.parse_args()
    print("| network | method | weights removed | dense | folded | fold time |\n|---|---|---|---|---|---|")
    for dataset in DATASETS:
        images, labels = load_test(args.data, dataset)
        for form in args.form:
            path = args.models / f"resnet18_w32_{dataset}_{form}.onnx"
            for method in args.method:
                for sparsity in args.sparsity:
                    start = time.perf_counter()
                    result = onnxfold.fold(path, sparsity, method=method)
                    seconds = time.perf_counter() - start
                    found = onnxfold.compare(path, result.model, {"image": images}, labels)
                    print(
                        f"| {path.stem} | {method} | {result.report.sparsity:.1%} | {found.accuracy_a:.2%} "
                        f"| {found.accuracy_b:.2%} | {seconds:.1f} s |",
                        flush=True,
                    )


def load_test(data: Path, dataset: str) -> tuple[Array, Array]:
    """Return the normalised test images and labels of a data set."""
    if dataset == "cifar10":
        return cifar10.load_test(data)
    images, labels = fashion_mnist.load_split(data, "test")
    return fashion_mnist.preprocess(images), labels


if __name__ == "__main__":
    main()
