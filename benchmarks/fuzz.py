"""Random graphs of every operator with a channel rule, folded: python -m benchmarks.fuzz --graphs 2000.

Exits with 1 if any graph fails. ``--coretypes Nehalem Haswell`` runs the same under several kernels of OpenBLAS, each
in a process of its own: what is folded without loss must be so whatever the rounding.
"""

import argparse
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from benchmarks.kernels import CORETYPES, distinct_kernels, probe
from onnxfold.channels.context import all_rules
from testing.random_graphs.check import Outcome, check

#: Seconds after which a graph counts as hanging.
LIMIT = 60

#: How often every rule must have been exercised.
LEAST = 20


class HangError(Exception):
    """A graph took too long."""


def _ring(signum: int, frame: object) -> None:
    raise HangError(f"hang: longer than {LIMIT} s")


def guarded(seed: int) -> tuple[Outcome, float]:
    """Check one graph; an exception or a hang is an outcome too."""
    start = time.perf_counter()
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(LIMIT)
    try:
        outcome = check(seed)
    except HangError as error:
        outcome = Outcome(seed, [str(error)])
    except Exception:  # the check itself fell over
        outcome = Outcome(seed, ["crash: " + " ".join(traceback.format_exc().split())[-400:]])
    finally:
        signal.alarm(0)
    return outcome, time.perf_counter() - start


def summarise(outcomes: list[Outcome], seconds: list[float], first: int, elapsed: float, kernel: str) -> str:
    """Return the outcome of a run as Markdown."""
    kinds = Counter(failure.split(":")[0] for o in outcomes for failure in o.failures)
    rules = Counter(rule for o in outcomes for rule in o.rules)
    known = [(domain, rule.op_type, rule.since) for domain, rule in all_rules()]
    rare = [f"{domain}{'::' if domain else ''}{op}-{since} ({rules[domain, op, since]})"
            for domain, op, since in known if rules[domain, op, since] < LEAST]  # fmt: skip
    count = len(outcomes)
    rows = [
        ("BLAS kernel", kernel),
        ("graphs (seeds)", f"{count} ({first} to {first + count - 1})"),
        ("nodes per graph, mean (largest)", f"{sum(o.nodes for o in outcomes) / count:.1f} "
                                            f"({max(o.nodes for o in outcomes)})"),
        ("graphs that folded something", f"{sum(o.folded for o in outcomes)} "
                                         f"({sum(o.folded for o in outcomes) / count:.1%})"),
        ("nothing to fold", str(sum(o.nothing for o in outcomes))),
        ("widened and folded back", str(sum(o.widened for o in outcomes))),
        ("invalid outputs (checker, onnxruntime, interface, not finite)",
         str(kinds["invalid"] + kinds["interface"] + kinds["not finite"])),
        ("tracebacks", str(kinds["crash"])),
        ("hangs", str(kinds["hang"])),
        ("lossless violations", str(kinds["lossless"])),
        ("modified inputs", str(kinds["input"])),
        ("runs that differ with one seed", str(kinds["seed"])),
        ("slowest graph (s)", f"{max(seconds):.2f}"),
        ("total (s)", f"{elapsed:.0f}"),
        (f"rules exercised by at least {LEAST} graphs", f"{len(known) - len(rare)} of {len(known)}"),
    ]  # fmt: skip
    lines = ["# Random graphs", "", f"`python -m benchmarks.fuzz --graphs {count} --seed0 {first}`", ""]
    lines += ["| | |", "|---|---:|", *[f"| {name} | {value} |" for name, value in rows], ""]
    if rare:
        lines += [f"Rules exercised less often: {', '.join(rare)}.", ""]
    failed = [(o.seed, f) for o in outcomes for f in o.failures]
    if failed:
        lines += ["## Failures", "", *[f"- seed {seed}: {re.sub(r'[|`]', ' ', text)}" for seed, text in failed], ""]
    lines += ["## Graphs per rule", "", "| operator | since | graphs |", "|---|---:|---:|"]
    lines += [f"| {domain}{'::' if domain else ''}{op} | {since} | {rules[domain, op, since]} |"
              for domain, op, since in known]  # fmt: skip
    return "\n".join(lines) + "\n"


def under_kernels(coretypes: list[str], most: int, threads: list[int], arguments: list[str]) -> int:
    """Run this benchmark once per distinct kernel and number of threads; return the largest exit code."""
    worst = runs = 0
    for coretype, found, reason in distinct_kernels(coretypes):
        if runs == most:
            break
        if reason:
            print(f"{coretype}: skipped, {reason}\n", flush=True)
            continue
        runs += 1
        for count in threads:
            print(f"{coretype} ({found.architecture}), {count} threads:", flush=True)
            environment = {**os.environ, "OPENBLAS_CORETYPE": coretype, "OMP_NUM_THREADS": str(count)}
            done = subprocess.run([sys.executable, "-m", "benchmarks.fuzz", *arguments], env=environment, check=False)
            worst = max(worst, abs(done.returncode))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed0", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="Markdown file to write.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--coretypes", nargs="*", help=f"Kernels of OpenBLAS; all if none is named: {CORETYPES}.")
    parser.add_argument("--most", type=int, default=len(CORETYPES), help="Most kernels to run, with --coretypes.")
    parser.add_argument("--threads", nargs="+", type=int, default=[1], help="Threads, with --coretypes.")
    args = parser.parse_args()
    if args.coretypes is not None:
        passed = ["--graphs", str(args.graphs), "--seed0", str(args.seed0), "--workers", str(args.workers)]
        return under_kernels(args.coretypes or list(CORETYPES), args.most, args.threads, passed)
    kernel = probe()
    if not kernel.architecture:
        print(f"skipped: the BLAS kernel OPENBLAS_CORETYPE={os.environ.get('OPENBLAS_CORETYPE')} {kernel}")
        return 0
    start = time.perf_counter()
    seeds = range(args.seed0, args.seed0 + args.graphs)
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        results = pool.map(guarded, seeds, chunksize=20)
    outcomes = [o for o, _ in results]
    text = summarise(outcomes, [s for _, s in results], args.seed0, time.perf_counter() - start, str(kernel))
    print(text.split("## Graphs per rule")[0], end="", flush=True)
    if args.out is not None:
        args.out.write_text(text)
    return int(any(o.failures for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
