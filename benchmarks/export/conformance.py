"""Run ONNX's backend node tests through the TFLite writer, for the page docs/tflite_ops.md.

Usage: python -m benchmarks.export.conformance [--op NAME ...]

Every test of one node whose operator has a converter is converted and run in the installed TFLite interpreter, and its
outputs are compared with those that the test expects. Inputs that networks have as weights (filters, slopes,
shapes, axes) are turned into initializers first; so are all constants of that kind that TFLite needs when a file is
written.
"""

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from onnxfold.export.tflite.context import how_written
from testing.node_tests import operators, run


def render() -> str:
    """Return ``docs/tflite_ops.md``."""
    outcomes = defaultdict(list)
    for outcome in run(operators()):
        outcomes[outcome.operator].append(outcome)
    documented = how_written()
    total = [o for found in outcomes.values() for o in found]
    rows = []
    refusals: list[str] = []
    excluded: list[str] = []
    for name in operators():
        found = outcomes.get(name, [])
        refused, differing, outside = ([o for o in found if getattr(o, k)] for k in ("refused", "differs", "outside"))
        inside = len(found) - len(outside)
        share = f"{len(refused) / inside:.0%}" if inside else "no test"
        rows.append(
            f"| `{name}` | {_escaped(documented[name])} | {sum(o.passed for o in found)} | {len(refused)} | "
            f"{share} | {len(differing)} "
            f"| {len(outside)} |\n"
        )
        refusals += [f"| `{name}` | {o.test} | {_escaped(o.refused or o.differs)} |\n" for o in (*refused, *differing)]
        kinds = Counter(o.outside for o in outside)
        excluded += [f"| `{name}` | {count} | {kind} |\n" for kind, count in sorted(kinds.items())]
    return (
        "<!-- Written by `python -m docs.generate`; do not edit. -->\n\n# Operators of the TFLite writer\n\n"
        "What `onnxfold export` writes directly. Every operator is tested with ONNX's own backend tests of one node, "
        f"weights turned into initializers: {sum(o.passed for o in total)} of {len(total)} tests give the "
        "expected outputs in the "
        f"interpreter, {sum(bool(o.refused) for o in total)} are refused with a reason, "
        f"{sum(bool(o.differs) for o in total)} differ.\n\n"
        "| operator | how it is written | passed | refused | share refused | differ | not counted "
        "|\n|---|---|---|---|---|---|---|\n"
        + "".join(rows)
        + "\n## Refused tests\n\n| operator | test | reason |\n|---|---|---|\n"
        + "".join(refusals)
        + "\n## Tests outside of TFLite\n\nTheir inputs or outputs are of types that TFLite's kernels do not have; "
        "they are not counted above.\n\n| operator | tests | type |\n|---|---|---|\n" + "".join(excluded)
    )


def _escaped(text: str) -> str:
    """Return a text for the cell of a table."""
    return text.replace("|", "\\|")


def main() -> None:
    """Print the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", nargs="*", help="operators; all of the TFLite writer if not given")
    parser.add_argument("--out", type=Path, help="write the page of the documentation there")
    args = parser.parse_args()
    if args.out:
        args.out.write_text(render(), encoding="utf-8")
        return
    for name in args.op or operators():
        found = list(run([name]))
        refused = [o for o in found if o.refused]
        print(f"{name:28} {len(found):4} passed {sum(o.passed for o in found):4} refused {len(refused):3} "
              f"{'TOO MANY' if len(refused) > 0.2 * len(found) else ''}")  # fmt: skip
        for outcome in found:
            if outcome.refused or outcome.differs:
                print(f"    {outcome.test}: {outcome.refused or 'DIFFERS ' + outcome.differs}")


if __name__ == "__main__":
    main()
