"""Time folds: python -m benchmarks.fold_time --parent REV [--models DIR].

With `--parent`: seconds of every phase of folds and their peak memory, with that revision and with this tree in turn,
for the bundled LeNet5-2x and for every .onnx file of the folders; once as by default, once on dead leaves, as without
torch. Nothing is taken from a cache. CPU seconds are those of all threads; they say more than wall time on a machine
that others use. Peak memory is the largest resident set of the process or of a child of it.

Without it: wall time beside onnxsim's structured pruning, see benchmarks/fold_time/onnxsim_pruning.py.
"""

import argparse
import platform
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import onnxfold
from benchmarks.fold_time import onnxsim_pruning
from benchmarks.fold_time.phases import Case, Pair, summary, table, time_pair
from benchmarks.same_bytes import revisions
from onnxfold.machine.threads import usable_cores

_ROOT = Path(__file__).resolve().parents[2]
_BUNDLED = Path(onnxfold.__file__).parent / "data" / "lenet5_2x.onnx"


def cases(folders: Sequence[Path], only: str, without: Sequence[str], sparsity: float) -> list[Case]:
    """Return the folds to time."""
    models = [_BUNDLED, *(path for folder in folders for path in sorted(folder.glob("*.onnx")))]
    kinds = {"": {}, ", dead leaves": {"inputs": "dead-leaves"}}
    found = [
        Case(f"{path.stem}{label}", path, {"sparsity": sparsity, **options})
        for path in models
        for label, options in kinds.items()
    ]
    chosen = [case for case in found if fnmatchcase(case.name, only)]
    return [case for case in chosen if not any(fnmatchcase(case.name, pattern) for pattern in without)]


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parent", metavar="REV", help="The revision to compare with.")
    parser.add_argument("--models", type=Path, action="append", default=[], help="Folders of further models.")
    parser.add_argument("--only", default="*", metavar="GLOB", help="Cases by name, such as 'resnet*'.")
    parser.add_argument("--not", dest="without", nargs="+", default=[], metavar="GLOB", help="Leave these cases out.")
    parser.add_argument("--sparsity", type=float, default=0.5, help="Part of the weights to remove.")
    parser.add_argument("--repeats", type=int, default=1, help="Runs of each; the least time counts.")
    parser.add_argument("--out", type=Path, help="Also write the tables to this file.")
    parser.add_argument("--json", type=Path, help="Without --parent: write the rows to this file.")
    args = parser.parse_args()
    if args.parent is None:
        onnxsim_pruning.main(args.repeats, args.json)
        return
    parent = revisions.commit(_ROOT, args.parent)
    lines = [
        "# Seconds of a fold by phase",
        "",
        f"Folds without {args.sparsity:.0%} of the weights, {platform.machine()}, {usable_cores()} threads, the least "
        f"of {args.repeats} runs; written by `python -m benchmarks.fold_time --parent {parent[:10]}`.",
        "",
    ]
    print("\n".join(lines))
    with revisions.checked_out(_ROOT, parent) as tree:
        pairs: list[Pair] = []
        for case in cases(args.models, args.only, args.without, args.sparsity):
            try:
                pairs.append(time_pair(case, (tree, _ROOT), args.repeats))
            except subprocess.CalledProcessError:
                print(f"{case.name}: one of the revisions refuses this fold", flush=True)
                continue
            print("\n".join(table(pairs[-1])), flush=True)
            if args.out is not None:
                body = [*summary(pairs), *(line for pair in pairs for line in table(pair))]
                args.out.write_text("\n".join([*lines, *body]).rstrip() + "\n")


if __name__ == "__main__":
    main()
