"""Measure sweeps: python -m benchmarks.sweeps [killed] [scaling] [simulated] [--page FILE.md].

`killed` runs 2 models x 8 sparsities x 3 methods x 2 seeds on two workers, kills a worker, then the client, runs it
again, and counts. `scaling` runs a part of the sweep on one worker and on two, and records how long every job takes.
`simulated` gives these durations to 64 workers that only wait: what is measured is the scheduler and the engine.
All three by default. Results go to FILE.json beside the page; parts that are not run keep what they have there.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.sweeps.killed import killed
from benchmarks.sweeps.page import render
from benchmarks.sweeps.scaling import on_workers, simulated

_FOLDER = Path(__file__).resolve().parents[1]
_WORKERS = (1, 2)
_SIMULATED = (16, 64)
_PARTS = ("killed", "scaling", "simulated")


def _killed(_: dict[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        found = killed(Path(folder) / "sweep")
    print(found, flush=True)
    assert found.is_right, "something is lost, or twice"
    return asdict(found)


def _scaling(_: dict[str, Any]) -> Any:
    rows = []
    for workers in _WORKERS:
        rows.append(on_workers(workers, "0.2,0.4,0.6,0.8"))
        print(rows[-1], f"efficiency {rows[-1].efficiency:.1%}", flush=True)
    return [asdict(row) for row in rows]


def _simulated(results: dict[str, Any]) -> Any:
    recorded = results["scaling"][0]  # on one worker, where no other one of the sweep takes its time
    rows = []
    for workers in _SIMULATED:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(simulated(workers, recorded["durations"], recorded["input_durations"], Path(folder)))
        print(rows[-1], f"efficiency {rows[-1].efficiency:.1%}", flush=True)
    return [asdict(row) for row in rows]


_RUNS: dict[str, Callable[[dict[str, Any]], Any]] = {"killed": _killed, "scaling": _scaling, "simulated": _simulated}


def main() -> None:
    """Run the parts, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=_PARTS, default=_PARTS, metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--page", type=Path, default=_FOLDER / "sweeps.md")
    args = parser.parse_args()
    stored = args.page.with_suffix(".json")
    results = json.loads(stored.read_text()) if stored.exists() else {}
    for part in args.parts:
        results[part] = _RUNS[part](results)
        results["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        stored.write_text(json.dumps(results, indent=1) + "\n")
    args.page.write_text(render(results))


if __name__ == "__main__":
    main()
