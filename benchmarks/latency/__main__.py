"""Latency of dense and folded networks in onnxruntime, by the choice of widths.

Usage: python -m benchmarks.latency MODEL.onnx [--rounds N] [--sparsity S ...]

All files of a network are timed in turn, round after round, in one process with one thread and one image; a ratio is
the median over rounds of the ratio within a round, so that what else runs on the machine concerns both sides alike.
Latency depends on widths, not on weights: the folds are fold-naive's.
"""

import argparse
from pathlib import Path

from benchmarks.latency.timing import ROUNDS, SPARSITIES, measure, table


def main() -> None:
    """Print the tables of one model."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.latency", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sparsity", nargs="+", type=float, default=SPARSITIES)
    args = parser.parse_args()
    print("\n".join(table(measure(args.model, args.sparsity, rounds=args.rounds))))


if __name__ == "__main__":
    main()
