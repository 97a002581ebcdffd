"""Fold real files of others at 30 %, and write the page.

Usage: python -m benchmarks.real --models DIR [--data DIR] [--only GLOB] [--part files|images|page] [--out FILE.json]

Every fold is the command in a process of its own. *files*: every file of the folder, on a few generated inputs, within
`--limit` seconds of processor time. *images*: those that read images, by defaults and on 100 real ones, judged by 50
others. Rows are kept in `--out`; what is there is not measured again.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.real.folds import Row, fold_and_judge, fold_cheaply
from benchmarks.real.images import FORMS
from benchmarks.real.page import render
from onnxfold.files import write

PARTS = ("files", "images", "page")


def main() -> None:
    """Measure what is missing, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of .onnx files")
    parser.add_argument("--data", type=Path, help="folder of images; without it no fold is judged on them")
    parser.add_argument("--only", default="*", help="glob of the files' names")
    parser.add_argument("--part", choices=PARTS, help="measure this only; page: nothing")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of processor time of a fold")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/real.json"))
    args = parser.parse_args()
    paths = sorted(args.models.glob(f"{args.only}.onnx"))
    if args.part in (None, "files"):
        _fill(args.out, "files", paths, lambda path: [fold_cheaply(path, args.limit)])
    if args.data is not None and args.part in (None, "images"):
        by_name = {path.stem: path for path in paths}
        known = [by_name[name] for name in FORMS if name in by_name]
        _fill(args.out, "images", known, lambda path: fold_and_judge(path, args.data, args.limit))
    args.out.with_suffix(".md").write_text(render(_rows(args.out)), encoding="utf-8")


def _fill(out: Path, part: str, paths: list[Path], measure: Callable[[Path], list[Row]]) -> None:
    for path in paths:
        if any(row["file"] == path.stem for row in _rows(out).get(part, [])):
            continue
        new = measure(path)
        for row in new:
            print(part, json.dumps(row), flush=True)
        rows = _rows(out)  # another part may have written meanwhile
        rows[part] = sorted([*rows.get(part, []), *new], key=lambda row: row["file"])
        write({out: f"{json.dumps(rows, indent=1)}\n".encode()})


def _rows(out: Path) -> dict[str, list[Row]]:
    return json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}


if __name__ == "__main__":
    main()
