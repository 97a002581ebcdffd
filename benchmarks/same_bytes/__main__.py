"""Fold with every method at a parent commit and in this tree, and compare: python -m benchmarks.same_bytes.

A table of what differs; exits with 1 if anything does, and with 2 if it could not be compared. Commits that change
results on purpose say so in their message: with the trailer ``Changes-bits: REASON`` rounding may change results
(widths are the same, outputs within 1e-5), with ``Changes-results: REASON`` anything may. Uncommitted changes count.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.same_bytes import revisions
from benchmarks.same_bytes.cases import all_cases
from benchmarks.same_bytes.differences import Difference, compare_case
from benchmarks.same_bytes.models import write_models

_ROOT = Path(__file__).resolve().parents[2]
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class SideError(Exception):
    """A side did not run to its end, or ran other code than its own."""


def start(tree: Path, cases: Path, models: Path, out: Path) -> "subprocess.Popen[str]":
    """Start the side of a tree in a process of its own, with one thread and the tree's own code."""
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", **dict.fromkeys(_THREADS, "1")}
    environment["XDG_CACHE_HOME"] = str(out / "caches")  # what another tree made is not what this one makes
    script = Path(__file__).with_name("side.py")
    command = [sys.executable, "-P", str(script), *map(str, (cases, models, out, tree))]
    with (out / "log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True, cwd=tree)


def finish(process: "subprocess.Popen[str]", tree: Path, out: Path, seconds: float) -> dict[str, Any]:
    """Wait for a side and return what it wrote.

    Raises
    ------
    SideError
        If it fails, takes longer, or imported code from outside its tree.
    """
    try:
        code = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SideError(f"{tree}: longer than {seconds:.0f} s") from None
    results = out / "results.json"
    if not results.exists():
        raise SideError(f"{tree}: exit code {code}: {' '.join((out / 'log').read_text().split())[-600:]}")
    found: dict[str, Any] = json.loads(results.read_text())
    if code:
        raise SideError(f"{tree}: imported code from elsewhere: {', '.join(found['strange'][:3])}")
    return found


def run_sides(trees: Sequence[Path], folder: Path, args: argparse.Namespace) -> list[Difference]:
    """Run both sides at a time and compare them.

    Raises
    ------
    SideError
        If a side does not run to its end, or no case is selected.
    """
    (models := folder / "models").mkdir()
    names = write_models(models, args.seeds, args.models)
    cases = [case for case in all_cases(names) if fnmatchcase(case.name, args.only)]
    if not cases:
        raise SideError(f"no case is called '{args.only}'")
    (listed := folder / "cases.json").write_text(json.dumps([asdict(case) for case in cases]))
    outs = [folder / "before", folder / "after"]
    processes = [start(tree, listed, models, out) for tree, out in zip(trees, outs, strict=True)]
    end = time.monotonic() + args.most_seconds
    try:
        before, after = (
            finish(process, tree, out, max(end - time.monotonic(), 0.0))
            for process, tree, out in zip(processes, trees, outs, strict=True)
        )
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print(f"before: {before['file']}\nafter: {after['file']}")
    kinds = Counter((case.kind, "error" in after["results"][case.name]) for case in cases)
    counted = ", ".join(f"{n} x {kind}{' (an error)' * failed}" for (kind, failed), n in kinds.items())
    print(f"{len(cases)} cases: {counted}")
    same_version = before["version"] == after["version"]
    found = []
    for case in cases:
        pair = (before["results"][case.name], after["results"][case.name])
        samples = models / f"{case.model}.npz"
        found.append(compare_case(case.name, *pair, (outs[0], outs[1]), samples, same_version=same_version))
    return [difference for difference in found if difference is not None]


def judge(differences: Sequence[Difference], bits: Sequence[str], results: Sequence[str]) -> int:
    """Print what differs and return the exit code: 1 for what no reason allows."""
    if differences:
        print("\n| case | differs | where |\n|---|---|---|")
    for d in differences:
        print(f"| {d.case} | {d.what}{' (rounding)' * d.is_rounding} | {d.details.replace('|', '/')} |")
    refused = [d for d in differences if not results and not (bits and d.is_rounding)]
    for trailer, reasons in ((revisions.BITS, bits), (revisions.RESULTS, results)):
        for reason in reasons:
            print(f"{trailer}: {reason}")
    print(f"{len(differences)} cases differ, {len(refused)} of them for no stated reason")
    return int(bool(refused))


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if results are the same, or differ as stated; 1 if they differ; 2 if they could not be compared."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parent", help="Revision; by default where the branch left main, or else HEAD^.")
    parser.add_argument("--models", type=Path, help="A folder of further models.")
    parser.add_argument("--seeds", type=int, nargs="*", default=range(10), help="Seeds of random graphs.")
    parser.add_argument("--only", default="*", metavar="GLOB", help="Cases by name, such as 'residual-*'.")
    parser.add_argument("--most-seconds", type=float, default=900.0, help="Most seconds that both sides may take.")
    parser.add_argument("--allow-bits", action="store_true", help="Rounding may differ, as Changes-bits states it.")
    args = parser.parse_args(arguments)
    began = time.perf_counter()
    try:
        parent = revisions.commit(_ROOT, args.parent) if args.parent else revisions.parent_of_work(_ROOT)
        bits, results = (revisions.reasons(_ROOT, parent, t) for t in (revisions.BITS, revisions.RESULTS))
        with revisions.checked_out(_ROOT, parent) as tree, tempfile.TemporaryDirectory() as folder:
            differences = run_sides((tree, _ROOT), Path(folder), args)
    except revisions.NoRevisionError as error:
        print(f"nothing to compare with, fetch the history (git fetch --unshallow): {error}", file=sys.stderr)
        return 2
    except SideError as error:
        print(f"not compared: {error}", file=sys.stderr)
        return 2
    code = judge(differences, bits + ["--allow-bits"] * args.allow_bits, results)
    print(f"parent {parent[:12]}, {time.perf_counter() - began:.0f} s")
    return code


if __name__ == "__main__":
    # The processes and the temporary folders end with this one.
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    sys.exit(main())
