"""Fraction of published architectures that folds, in every form that torch exports.

Usage: python -m benchmarks.coverage [--only NAME ...] [--form FORM ...] [--json out.json] [--keep FILE.json]
           [--markdown coverage.md]

For every architecture of testing.zoo and every form (language models: both exporters of torch with free lengths;
graphs as onnxruntime-genai's builder writes them): share of the conv/linear weights in fold groups, fold at
sparsity 0.3, run of the saved file in onnxruntime on inputs that the fold did not see, and, after every channel has
been copied (twice; one to three times), whether folding gives the original function back. Every architecture runs in
a process of its own with a limit of processor time per form; an exception is a row of the table.

After a change that concerns few architectures, `--only` measures these, and `--keep` takes all other rows from the JSON
file of an earlier run, benchmarks/coverage.json for example; the page says which are which.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.coverage.cases import ALL_FORMS, TABLE
from benchmarks.coverage.environment import describe_environment
from benchmarks.coverage.page import markdown, summary
from benchmarks.coverage.processes import run
from benchmarks.coverage.row import Row
from benchmarks.coverage.text import progress_line


def main() -> None:
    """Run, print progress, write."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.coverage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(TABLE), metavar="NAME")
    parser.add_argument("--form", nargs="+", choices=ALL_FORMS)
    parser.add_argument("--jobs", type=int, default=1, help="architectures at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="rows of an earlier run, for what is not measured now")
    parser.add_argument("--markdown", type=Path, help="default: benchmarks/coverage.md when everything is run")
    args = parser.parse_args()
    names, forms = args.only or list(TABLE), args.form or list(ALL_FORMS)
    environment = describe_environment()  # now: the library that runs is the one imported above
    kept = [] if args.keep is None else [Row(**row) for row in json.loads(args.keep.read_text(encoding="utf-8"))]
    rows: list[Row] = []
    start = time.perf_counter()
    total = sum(form in TABLE[name][1] for name in names for form in forms)
    for row in run(names, forms, args.jobs):
        rows.append(row)
        print(f"[{len(rows)}/{total}] {progress_line(row)}", flush=True)
    seconds, measured = time.perf_counter() - start, {(r.name, r.form) for r in rows}
    rows += [r for r in kept if (r.name, r.form) not in measured]
    order = list(TABLE), list(ALL_FORMS)
    rows.sort(key=lambda r: (order[0].index(r.name), order[1].index(r.form)))
    if args.json:
        args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    target = args.markdown
    if target is None and len(rows) == sum(len(found) for _, found in TABLE.values()):
        target = Path(__file__).parents[1] / "coverage.md"
    if target:
        again = names if len(rows) > len(measured) else []
        target.write_text(markdown(rows, seconds, environment, again))
    print("\n" + "\n".join(summary(rows)))
    sys.exit(any(r.errors for r in rows))


if __name__ == "__main__":
    main()
