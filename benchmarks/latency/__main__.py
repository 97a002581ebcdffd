"""Latency of dense and folded networks in onnxruntime.

Usage: python -m benchmarks.latency --page benchmarks/latency.md --models DIR [DIR ...] [--data DIR] [--results DIR]
       python -m benchmarks.latency MODEL.onnx [--rounds N] [--sparsity S ...]

The first form folds five networks to 30, 50 and 70 % of the weights and to a limit of latency, and writes a page:
trained files that lie in the folders of --models, untrained layouts for the others. What was measured of a network is
kept in --results, and measured again only if it is named by --networks; then networks without results are left out.
Generated inputs are shared through the cache of folds; --inputs dead-leaves makes them in no time.

The second form times one network by the choice of widths; latency depends on widths, not on weights, so the folds are
fold-naive's.

All files of a network are timed in turn, round after round, in one process with one thread and one image; a ratio is
the median over rounds of the ratio within a round, so that what else runs on the machine concerns both sides alike.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.latency.timing import ROUNDS, SPARSITIES, measure, table


def main() -> None:
    """Write the page, or print the tables of one model."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sparsity", nargs="+", type=float, default=SPARSITIES)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--models", nargs="+", type=Path, default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/out/latency"))
    parser.add_argument(
        "--networks", nargs="+", default=[], help="measure these again; by default those without results"
    )
    parser.add_argument("--inputs", default="auto")
    parser.add_argument("--samples", type=int)
    args = parser.parse_args()
    if args.page is not None:
        _page(args)
    elif args.model is not None:
        print("\n".join(table(measure(args.model, args.sparsity, rounds=args.rounds))))
    else:
        parser.error("give a model, or --page")


def _page(args: argparse.Namespace) -> None:
    from benchmarks.latency.networks import NETWORKS
    from benchmarks.latency.page import render
    from benchmarks.latency.rows import measure_network

    unknown = set(args.networks) - {network.name for network in NETWORKS}
    if unknown:
        sys.exit(f"unknown networks {sorted(unknown)}; there are {[network.name for network in NETWORKS]}")
    args.results.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"inputs": args.inputs, "samples": args.samples}
    results = []
    for network in NETWORKS:
        kept = args.results / f"{network.name.lower().replace(' ', '_')}.json"
        if network.name not in args.networks and args.networks and not kept.exists():
            continue
        if network.name in args.networks or not kept.exists():
            with tempfile.TemporaryDirectory() as work:
                found = measure_network(network, args.models, args.data, Path(work), options, _say)
            kept.write_text(json.dumps(found, indent=1))
        results.append(json.loads(kept.read_text()))
    given = [f"--{name} {value}" for name, value in options.items() if value not in (None, "auto")]
    folders = " ".join("MODELS" for _ in args.models)
    command = " ".join(["python -m benchmarks.latency --page PAGE --data DATA --models", folders or "DIR", *given])
    args.page.write_text(render(results, command))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
