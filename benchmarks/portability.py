"""Fold results with other kernels: BLAS, torch and numpy restricted to other instruction sets.

Usage: python -m benchmarks.portability --data DIR [--models DIR] [--networks NAME ...] [--seeds N] [--page FILE.md]

Every fold runs in a process of its own, whose libraries are told by environment variables which instructions they may
use. onnxruntime has no such variable; its kernels are those of this machine in every row. Accuracy is measured on all
10,000 test images. The same fold is made twice with nothing restricted: on one machine the bytes are the same.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import onnxfold
from benchmarks.accuracy.networks import Network, find_networks, input_of, test_images
from benchmarks.kernels import CORETYPES, distinct_kernels, probe
from onnxfold import api

#: Largest distance of the accuracies of two environments, in points: with one seed, and of the means over seeds.
ONE_SEED, MEAN = 0.3, 0.15
_DEFAULT = ("lenet5_2x", "resnet18_w32_cifar10_fused")


@dataclass(frozen=True)
class Environment:
    """Variables that restrict the libraries of a process, and what they stand for."""

    name: str
    variables: dict[str, str]


@dataclass(frozen=True)
class Fold:
    """What one fold came to."""

    widths: tuple[int, ...]
    accuracy: float
    sha256: str


def environments(coretypes: Sequence[str]) -> list[Environment]:
    """Return what this machine can run: nothing restricted (twice), every BLAS kernel, torch and numpy with less."""
    kernel = probe().architecture
    found = [Environment(f"unrestricted ({kernel})", {}), Environment("the same again", {})]
    for coretype, known, reason in distinct_kernels(coretypes):
        if reason or known.architecture == kernel:
            print(f"{coretype}: skipped, {reason or 'it is the unrestricted kernel'}", file=sys.stderr)
        else:
            found.append(Environment(f"OpenBLAS {known.architecture}", {"OPENBLAS_CORETYPE": coretype}))
    found.append(Environment("torch without vectors", {"ATEN_CPU_CAPABILITY": "default"}))
    found.append(Environment("oneDNN up to AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}))
    features = np._core._multiarray_umath  # type: ignore[attr-defined]  # the only place that knows them
    dispatched = [f for f in features.__cpu_dispatch__ if features.__cpu_features__.get(f)]
    if dispatched:
        found.append(
            Environment("numpy without " + ", ".join(dispatched), {"NPY_DISABLE_CPU_FEATURES": " ".join(dispatched)})
        )
    return found


def fold_in(environment: Environment, network: Network, data: Path, sparsity: float, seed: int) -> Fold:
    """Fold and measure in a child process."""
    command = [sys.executable, "-m", "benchmarks.portability", "--data", str(data), "--one", str(network.path)]
    command += ["--sparsity", str(sparsity), "--seed", str(seed), "--models", str(network.path.parent)]
    merged = {**os.environ, **environment.variables}
    done = subprocess.run(command, env=merged, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{environment.name}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Fold(tuple(found["widths"]), found["accuracy"], found["sha256"])


def one(network: Network, data: Path, sparsity: float, seed: int) -> None:
    """Fold, measure, and print the outcome as a line of JSON."""
    # No clock decides, and no earlier run.
    options = {"objective": "weights", "round_to": 1, "verify": False, "input_seconds": 1e6, "cache": None}
    result = onnxfold.fold(network.path, sparsity, seed=seed, **options)
    model = result.model
    images, labels = test_images(data, network)
    report = api.compare(model, model, {input_of(network)[0]: images}, labels)
    print(json.dumps({
        "widths": [g.folded_width for g in result.report.groups],
        "accuracy": report.accuracy_b,
        "sha256": hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest(),
    }))  # fmt: skip


def table(network: str, sparsity: float, folds: dict[str, list[Fold]]) -> tuple[list[str], bool]:
    """Return a Markdown table of one network, and whether all environments are close enough."""
    first = next(iter(folds.values()))
    seeds = len(first)
    lines = [f"## {network}, {sparsity:.0%} of the weights removed, seeds 0 to {seeds - 1}", ""]
    lines += ["| environment | accuracy per seed | mean | widths | bytes |", "|---|---|---:|---|---|"]
    for name, found in folds.items():
        each = " ".join(f"{100 * f.accuracy:.2f}" for f in found)
        moved = sum(
            abs(a - b) for f, g in zip(found, first, strict=True) for a, b in zip(f.widths, g.widths, strict=True)
        )
        widths = f"{moved} channels in {seeds} folds" if moved else "the same"
        same = all(f.sha256 == g.sha256 for f, g in zip(found, first, strict=True))
        mean = 100 * np.mean([f.accuracy for f in found])
        lines.append(f"| {name} | {each} | {mean:.2f} | {widths} | {'the same' if same else 'other'} |")
    accuracies = 100 * np.array([[f.accuracy for f in found] for found in folds.values()])
    worst, mean_spread = float(np.ptp(accuracies, axis=0).max()), float(np.ptp(accuracies.mean(axis=1)))
    distances = f"Largest distance with one seed {worst:.2f} points (target {ONE_SEED})"
    lines += ["", f"{distances}, of the means {mean_spread:.2f} (target {MEAN})."]
    again = list(folds.values())[1]
    repeats = all(f.sha256 == g.sha256 for f, g in zip(first, again, strict=True))
    lines += ["" if repeats else "\nTwo equal runs gave different bytes.", ""]
    return lines, worst <= ONE_SEED and mean_spread <= MEAN and repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=Path("models"))
    parser.add_argument("--networks", nargs="+", default=_DEFAULT)
    parser.add_argument("--coretypes", nargs="+", default=CORETYPES)
    parser.add_argument("--sparsity", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    networks = {n.path: n for n in find_networks([args.models])}
    if args.one is not None:
        one(networks[args.one], args.data, args.sparsity, args.seed)
        return 0
    lines = ["# The same fold under other kernels", "", f"`python -m {_command(args)}`", ""]
    close = True
    for network in (n for n in networks.values() if n.name in args.networks):
        folds: dict[str, list[Fold]] = {}
        for environment in environments(args.coretypes):
            folds[environment.name] = [
                fold_in(environment, network, args.data, args.sparsity, seed) for seed in range(args.seeds)
            ]
            print(f"{network.name}, {environment.name}: {folds[environment.name]}", file=sys.stderr, flush=True)
        found, fine = table(network.name, args.sparsity, folds)
        lines, close = lines + found, close and fine
    text = "\n".join(lines)
    print(text)
    if args.page is not None:
        args.page.write_text(text + "\n")
    return int(not close)


def _command(args: argparse.Namespace) -> str:
    return f"benchmarks.portability --data DATA --models MODELS --sparsity {args.sparsity} --seeds {args.seeds}"


if __name__ == "__main__":
    sys.exit(main())
