"""Seconds per test file, from one or several JUnit files of pytest.

Usage: python -m benchmarks.test_times junit.xml [more.xml ...] [--before old.xml ...] [--tests]

Processor time (of the test's process and its children) stays comparable on a machine that does other work; wall time
does not. Files that took less than a second in all are one row.
"""

import argparse
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

_SMALL = 1.0


@dataclass
class Cost:
    """Number of tests, wall seconds, processor seconds."""

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: "Cost") -> None:
        """Add another cost in place."""
        self.tests, self.wall, self.cpu = self.tests + other.tests, self.wall + other.wall, self.cpu + other.cpu


def read(paths: list[Path], *, each: bool = False) -> dict[str, Cost]:
    """Return the cost of every test file, or of every test."""
    costs: dict[str, Cost] = defaultdict(Cost)
    for path in paths:
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = case.get("classname", "").replace(".", "/") + ".py"
            cpu = sum(float(p.get("value", 0)) for p in case.iter("property") if p.get("name") == "cpu_seconds")
            key = f"{name}::{case.get('name')}" if each else name
            costs[key].add(Cost(1, float(case.get("time", 0)), cpu))
    return dict(costs)


def table(after: dict[str, Cost], before: dict[str, Cost] | None = None) -> list[str]:
    """Return the rows of a Markdown table, the dearest first; the last row is the sum."""
    rows: dict[str, tuple[Cost, Cost]] = {}
    total = (Cost(), Cost())
    small = (Cost(), Cost())
    for name in {**(before or {}), **after}:
        pair = ((before or {}).get(name, Cost()), after.get(name, Cost()))
        for part, cost in zip(total, pair, strict=True):
            part.add(cost)
        if max(c for p in pair for c in (p.cpu, p.wall)) < _SMALL:
            for part, cost in zip(small, pair, strict=True):
                part.add(cost)
        else:
            rows[name] = pair
    kept = 1 if before is None else 0
    head = ["tests", "wall s", "CPU s"]
    columns = head if kept else [f"{c} {when}" for when in ("before", "after") for c in head]
    lines = [f"| file | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    ordered = sorted(rows.items(), key=lambda row: -max(row[1][0].cpu, row[1][1].cpu, row[1][1].wall / 1000))
    for name, pair in [*ordered, (f"files under {_SMALL:g} s", small), ("sum", total)]:
        figures = [f"{c.tests} | {c.wall:.1f} | {c.cpu:.1f}" for c in pair[kept:]]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("junit", type=Path, nargs="+")
    parser.add_argument("--before", type=Path, nargs="+", help="JUnit files of an earlier run, for comparison")
    parser.add_argument("--tests", action="store_true", help="a row per test")
    args = parser.parse_args()
    before = read(args.before, each=args.tests) if args.before else None
    print("\n".join(table(read(args.junit, each=args.tests), before)))


if __name__ == "__main__":
    main()
