"""Accuracy of folded ImageNet networks on labelled images that no choice of the method was made on.

Usage: python -m benchmarks.imagenet --data DIR --models DIR [--page FILE.md] [--sparsity S ...]
                                    [--calibration N | --bound]

DIR with data holds ``imagenet_even_500.zip`` (benchmarks.datasets.imagenet_even); DIR with models the files that
`benchmarks.training.efficientnet_lite` writes. Images of classes that are multiples of 4 served to develop the method,
and as unlabeled data with --calibration; accuracy is measured on the other 250. Intervals are Wilson's, of 95 %.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import onnxfold
from benchmarks.coverage.text import table_row
from benchmarks.datasets import imagenet_even
from onnxfold.fidelity.answer_measures import wilson_interval
from onnxfold.graph.run.session import Session

#: Networks by file name, with the form of their BatchNormalizations.
NETWORKS = {"efficientnet_lite1_imagenet_fused": "fused", "efficientnet_lite1_imagenet_bn": "kept"}
PIXELS = 240
SPARSITIES = (0.1, 0.2, 0.3, 0.4)
_BATCH = 25

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print rows as they are done, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--sparsity", type=float, nargs="+", default=list(SPARSITIES))
    parser.add_argument("--calibration", type=int, default=0, metavar="N", help="also fold on so many unlabeled images")
    parser.add_argument(
        "--bound",
        action="store_true",
        help="only fold on unlabeled images: on each half of all images, measured on the other half",
    )
    options = parser.parse_args(arguments)
    images, labels = imagenet_even.load(options.data, PIXELS)
    tuning = imagenet_even.is_tuning(labels)
    lines = []
    count = options.calibration or len(images)
    generated, halves = ("generated", None, ~tuning), ("unlabeled images", tuning, ~tuning)
    runs = [halves, ("the other half", ~tuning, tuning)] if options.bound else [generated]
    if options.calibration and not options.bound:
        runs.append(halves)
    for name, form in NETWORKS.items():
        path = options.models / f"{name}.onnx"
        for kind, shown, measured in runs:
            given = None if shown is None else {_input(path): images[shown][:count]}
            for row in _rows(path, kind, given, options.sparsity, images[measured], labels[measured]):
                lines.append(table_row([form, *row]))
                print(lines[-1], flush=True)
    if options.page:
        options.page.write_text("\n".join([*_head(int((~tuning).sum())), *lines]) + "\n")
    return 0


def _rows(
    path: Path, kind: str, given: dict[str, Images] | None, sparsities: Iterable[float], x: Images, y: Labels
) -> Iterable[list[str]]:
    dense = answers(onnx.load(path), x)
    yield ["0%", kind, "", _share(dense == y), "", "", ""]
    for sparsity in sparsities:
        start = time.perf_counter()
        # Nothing that an earlier fold generated: seconds are those of a first fold.
        options: dict[str, Any] = {"cache": None}
        if given is not None:
            options |= {"calibration": given, "samples": len(next(iter(given.values())))}
        result = onnxfold.fold(path, sparsity, **options)
        seconds = time.perf_counter() - start
        report, found = result.report, answers(result.model, x)
        on = "" if report.inputs is None else f"{report.inputs.samples} of {report.inputs.kind}"
        lost = float((dense == y).mean() - (found == y).mean()) * 100
        cells = [f"{report.sparsity:.1%}", kind, on, _share(found == y), f"{lost:+.1f}", _share(found == dense)]
        yield [*cells, f"{seconds:.0f}"]


def _share(right: npt.NDArray[np.bool_]) -> str:
    low, high = wilson_interval(int(right.sum()), len(right))
    return f"{right.mean():.1%} ({low:.1%} to {high:.1%})"


def answers(model: onnx.ModelProto, images: Images) -> Labels:
    """Return the class that a model names for every image."""
    session = Session(model)
    (name,) = (info.name for info in session.inputs)
    found: Labels = session.run_in_batches({name: images}, _BATCH)[0].reshape(len(images), -1).argmax(axis=1)
    return found


def _input(path: Path) -> str:
    name: str = onnx.load(path, load_external_data=False).graph.input[0].name
    return name


def _head(count: int) -> list[str]:
    columns = ["BatchNormalization", "weights removed", "inputs", "samples", "top-1", "points lost", "agreement", "s"]
    return [
        "# ImageNet networks",
        "",
        "Reproduce with `python -m benchmarks.imagenet --data DATA --models MODELS --page PAGE --calibration 250`.",
        "",
        f"EfficientNet-Lite1 at {PIXELS} px, folded at defaults on inputs that are generated, and on unlabeled images.",
        f"Accuracy and agreement with the dense network on {count} labelled images that served no choice; in brackets",
        "the 95 % confidence interval. Seconds are those of one whole fold, verification included.",
        "",
        table_row(columns),
        table_row(["---"] * len(columns)),
    ]


if __name__ == "__main__":
    sys.exit(main())
