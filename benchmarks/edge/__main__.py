"""Comparison with the published device table: LeNet5-2x and LeNet5 at several sparsities.

Usage: python -m benchmarks.edge --data DIR [--quick] [--out benchmarks/edge.md] [--images N]

DIR holds the Fashion-MNIST files. Folds both bundled networks, measures accuracy on all test images, benchmarks every
file on every device, and runs the one that was folded for the Arduino Nano 33 BLE in the emulated Cortex-M4F on the
first N test images. Needs what `onnxfold bench` says is missing; `--quick` is LeNet5 at two sparsities and few images.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.datasets.fashion_mnist import load_split, preprocess_padded
from benchmarks.edge.networks import FITTED, IMAGES, NETWORKS, SPARSITIES, fold_all, run_emulated
from benchmarks.edge.page import render
from benchmarks.edge.results import read_results
from onnxfold.edge_bench.bench import bench
from onnxfold.progress import ProgressBar


def main() -> None:
    """Fold, measure, and write the page."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.edge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with the Fashion-MNIST *-ubyte.gz files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "edge.md")
    parser.add_argument("--images", type=int, default=IMAGES, help="test images in the emulator")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--models", type=Path, help="folder to keep folded networks in; what is there is not folded again"
    )
    parser.add_argument("--again", type=Path, metavar="JSON", help="only write the page, from an earlier run's results")
    args = parser.parse_args()
    if args.again is not None:
        args.out.write_text(render(*read_results(args.again)), encoding="utf-8")
        return
    images, labels = load_split(args.data, "test")
    inputs = preprocess_padded(images)
    count = 20 if args.quick else args.images
    networks, sparsities = (("lenet5",), (0.0, 0.5)) if args.quick else (NETWORKS, SPARSITIES)
    with tempfile.TemporaryDirectory() as name, ProgressBar() as tell:
        folder = Path(name)
        models = args.models or folder
        models.mkdir(parents=True, exist_ok=True)
        variants = fold_all(models, networks, sparsities, inputs, labels, fit=not args.quick)
        rows = bench([models / f"{v.model}.onnx" for v in variants], progress=tell)
        shown = next((v for v in variants if v.label == FITTED), variants[-1])
        found = run_emulated(models / f"{shown.model}.onnx", inputs[:count], labels[:count], folder)
    page = render(variants, rows, found)
    args.out.write_text(page, encoding="utf-8")
    results = {
        "variants": [asdict(v) for v in variants], "rows": [r.to_dict() for r in rows], "emulated": asdict(found)
    }  # fmt: skip
    args.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {args.out} and {args.out.with_suffix('.json')}")


if __name__ == "__main__":
    main()
