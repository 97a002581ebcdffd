"""Calibration of the estimated agreement on real images, and its validation on networks that had no part in it.

Usage: python -m benchmarks.prediction --data DIR --models DIR [--models DIR] --out DIR [--page FILE.md]
           [--rows FILE.json] [--networks GLOB ...] [--inputs KIND ...] [--cache DIR]

DIR with data holds the Fashion-MNIST idx files, cifar10_test.npz, cifar10_train_first5k.npz and
imagenet_even_500.zip; DIR with models trained networks whose names say which images they read; the bundled LeNets take
part. OUT/cells.jsonl gets one row per fold, and the folds of a network that are there are not made again. From the rows
of generated inputs, the regression of `onnxfold.fidelity.estimate` is fitted and validated, leaving one training after
the other out; its numbers are printed beside those that the package has.
"""

import argparse
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.prediction.cells import KINDS, Rows, measure, subjects
from benchmarks.prediction.page import render
from benchmarks.prediction.regression import fit, is_on_samples, rounded
from onnxfold.fidelity.estimate import REGRESSION


def main() -> int:
    """Measure what is missing, fit, validate, and write the page."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.prediction", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="the Markdown page; OUT/prediction.md if not given")
    parser.add_argument("--rows", type=Path, help="write the rows as one JSON file, too")
    parser.add_argument("--networks", nargs="+", default=["*"], metavar="GLOB", help="measure only networks so named")
    parser.add_argument("--inputs", nargs="+", choices=KINDS, default=KINDS, help="measure only folds on these")
    parser.add_argument("--cache", help="folder for generated inputs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(args.out / "cells.jsonl")
    for subject in subjects(args.data, args.models):
        if not any(fnmatchcase(subject.name, glob) for glob in args.networks):
            continue
        for kind in args.inputs:
            if rows.has(subject.name, kind):
                continue
            made = []
            for row in measure(subject, kind, args.cache):
                made.append(row)
                print(f"{subject.name} {kind} {row['sparsity']:g}: agreement {row['agreement']:.1%}", flush=True)
            rows.add(made)
    generated = [row for row in rows.rows if not is_on_samples(row)]
    if not generated:
        print("no fold on generated inputs was measured: no regression, and no page")
        return 0
    print(f"{rounded(fit(generated))}; onnxfold/fidelity/estimate.py has {REGRESSION}")
    page = args.page or args.out / "prediction.md"
    page.write_text(render(rows.rows), encoding="utf-8")
    if args.rows is not None:
        lines = ",\n".join(json.dumps(row) for row in rows.rows)
        args.rows.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
