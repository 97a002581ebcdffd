"""Folds of quantised files, beside folds of the float32 file that are quantised afterwards.

Usage: python -m benchmarks.integers --data DIR --models DIR [--sparsity S ...] [--page FILE.md]

DIR with data holds ``cifar10_test.npz``; DIR with models ``resnet18_w32_cifar10_fused.onnx`` and
``resnet32_cifar10_fused.onnx``. Files are quantised by ``onnxfold fold --sparsity 0 --dtype int8`` (QDQ, calibrated on
generated inputs) and by onnxruntime's ``quantize_dynamic`` (ranges of every run). All top-1 are those of 10,000 images.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

import onnxfold
from benchmarks.coverage.text import table_row
from benchmarks.datasets import cifar10
from benchmarks.imagenet import Images, Labels, answers
from onnxfold.files import write

NETWORKS = ("resnet18_w32_cifar10_fused", "resnet32_cifar10_fused")
_HEAD = """# Quantised files

Reproduce with `python -m benchmarks.integers --data DATA --models MODELS --page PAGE`. Top-1 on 10,000 test images, no
data for folds and ranges. *Float first*: the float32 file is folded, and then quantised. *Integers*: the quantised file
is folded as it is, and stored as integers again. QDQ files have ranges of activations, dynamic ones take those of every
run.

"""
_COLUMNS = ["network", "form", "removed", "quantised, whole", "float first", "integers", "points", "bytes"]


def dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with integer products that take the ranges of every run."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("float.onnx", "int8.onnx")]
        onnx.save(model, paths[0])
        quantize_dynamic(*paths, weight_type=QuantType.QUInt8)
        return onnx.load(paths[1])


def qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with ranges of activations from generated inputs."""
    return onnxfold.fold(model, 0.0, dtype="int8", verify=False).model


def measure(name: str, model: onnx.ModelProto, sparsity: float, images: Images, labels: Labels) -> list[list[str]]:
    """Return the rows of a network: one per form."""
    rows = []
    floats = onnxfold.fold(model, sparsity, verify=False).model
    for form in (qdq, dynamic):
        whole = form(model)
        result = onnxfold.fold(whole, sparsity, verify=False)
        top1 = [float((answers(m, images) == labels).mean()) for m in (whole, form(floats), result.model)]
        share = f"{result.report.sparsity:.1%}"
        sizes = f"{result.report.before.size_bytes:,} -> {result.report.after.size_bytes:,}"
        rows.append(
            [name, form.__name__, share, *(f"{x:.2%}" for x in top1), f"{100 * (top1[2] - top1[1]):+.2f}", sizes]
        )
        print(table_row(rows[-1]), flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5])
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(arguments)
    images, labels = cifar10.load_test(options.data)
    rows = [_COLUMNS, ["---"] * len(_COLUMNS)]
    for name in NETWORKS:
        model = onnx.load(options.models / f"{name}.onnx")
        for sparsity in options.sparsity:
            rows += measure(name, model, sparsity, images, labels.astype("int64"))
    if options.page:
        write({options.page: (_HEAD + "\n".join(map(table_row, rows)) + "\n").encode()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
