"""Time of a fold on idle cores, and on cores shared with other processes.

Usage: python -m benchmarks.shared_cores [--folds NAME ...] [--neighbours 0 1 2] [--page FILE.md]

A neighbour is one process per core that computes without a pause; half of them multiply matrices, the others loop in
Python. They are started for each measurement and ended after it, whatever happens. Every fold runs in a process of its
own, on all cores, with the command's defaults but for the ceiling of the time (an inversion is not cut: what is
compared would not be the same). The bytes of all folds of a network must agree; the command ends with 1 where they do
not, or where two neighbours cost more than 3.5 times the quiet time. A machine with other work gives no quiet time:
the load average before the first fold is printed.

Folded are the bundled LeNet5-2x, on inverted images and on dead leaves as without torch, with its accuracy on the 2,000
bundled test images; and the 56-layer ResNet for CIFAR with random weights: what a fold costs does not depend on whether
the network was trained.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from onnxfold import api
from onnxfold.commands.run_demo import bundled_test_images
from onnxfold.machine.threads import usable_cores

#: Most that two neighbours may cost, relative to the quiet time: with them a core has three jobs, and scheduling costs.
MOST = 3.5
#: Network and kind of inputs of every fold.
FOLDS = {
    "LeNet5-2x": ("lenet5_2x", "deep-inversion"),
    "LeNet5-2x, without torch": ("lenet5_2x", "dead-leaves"),
    "ResNet56": ("resnet56", "deep-inversion"),
}
_SECONDS = 1e6
_BUSY = (
    "import numpy as np, os\nparent = os.getppid()\na = np.random.default_rng(0).standard_normal((400, 400))\n"
    "while os.getppid() == parent:\n    for _ in range(20):\n        a @ a",
    "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for i in range(10**6):\n        pass",
)


@dataclass(frozen=True)
class Row:
    """One fold: seconds, seconds that its process computed, and what it came to."""

    fold: str
    neighbours: int
    seconds: float
    computed: float
    inputs: str
    sha256: str
    accuracy: float | None


def main() -> int:
    """Measure, print, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", nargs="+", choices=FOLDS, default=list(FOLDS))
    parser.add_argument("--neighbours", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--page", type=Path, help="write the table here")
    parser.add_argument(
        "--once", nargs=3, metavar=("MODEL", "OUT", "INPUTS"), help="fold once, print figures; used by itself"
    )
    args = parser.parse_args()
    if args.once is not None:
        print(json.dumps(_fold_here(Path(args.once[0]), Path(args.once[1]), args.once[2])))
        return 0
    load = os.getloadavg()[0]
    print(f"load average before: {load:.1f}", file=sys.stderr)
    rows = list(_measure(args.folds, args.neighbours))
    text = page(rows, load)
    print(text)
    if args.page is not None:
        args.page.write_text(text)
    return 0 if all(ok for _, ok in verdicts(rows)) else 1


def _measure(folds: Sequence[str], neighbours: Sequence[int]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for name in folds:
            network, inputs = FOLDS[name]
            model = _model(network, Path(folder))
            out = model.with_suffix(".folded.onnx")
            command = [sys.executable, "-m", "benchmarks.shared_cores", "--once", str(model), str(out), inputs]
            for count in neighbours:
                with _neighbours(count):
                    start = time.perf_counter()
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    seconds = time.perf_counter() - start
                told = json.loads(done.stdout.splitlines()[-1])
                sha256 = hashlib.sha256(out.read_bytes()).hexdigest()
                row = Row(name, count, seconds, told["computed"], told["inputs"], sha256, _accuracy(model, out))
                print(row, file=sys.stderr, flush=True)
                yield row


def _fold_here(model: Path, out: Path, inputs: str) -> dict[str, float | str]:
    import onnxfold

    result = onnxfold.fold(model, inputs=inputs, input_seconds=_SECONDS, cache=None)
    result.save(out)
    used = resource.getrusage(resource.RUSAGE_SELF)
    run_on = result.report.inputs
    return {
        "computed": used.ru_utime + used.ru_stime,
        "inputs": f"{run_on.samples} x {run_on.kind}" if run_on else "",
    }


def _accuracy(original: Path, folded: Path) -> float | None:
    """Return the accuracy of what was trained."""
    if original.stem != "lenet5_2x":
        return None
    images, labels = bundled_test_images()
    return api.compare(original, folded, {"image": images}, labels).accuracy_b


@contextmanager
def _neighbours(count: int) -> Iterator[None]:
    """Keep every core busy with so many other processes; each ends with us, too, should we be killed."""
    busy: list[subprocess.Popen[bytes]] = []
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        for i in range(count * usable_cores()):
            busy.append(subprocess.Popen([sys.executable, "-c", _BUSY[i % len(_BUSY)]], env=one_thread))  # noqa: PERF401
        time.sleep(1.0 if busy else 0.0)
        yield
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()


def _model(network: str, folder: Path) -> Path:
    path = folder / f"{network}.onnx"
    if network == "resnet56":
        subprocess.run([sys.executable, "-c", _RESNET56, str(path)], check=True)
    else:
        with as_file(files("onnxfold.data") / f"{network}.onnx") as bundled:
            path.write_bytes(bundled.read_bytes())
    return path


#: In a process of its own: here torch would be loaded, and its threads with it.
_RESNET56 = """
import sys
from pathlib import Path
import torch
from testing.zoo import resnets
from testing.zoo.export import export
from testing.zoo.prepare import images, randomise

torch.manual_seed(0)
make = images(3, 32, 32)
network = resnets.resnet_option_a(width=16, depth=9)
randomise(network, make)
export(network, (make(2),), Path(sys.argv[1]), "legacy-bn")
"""


def verdicts(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """Return, for every fold, what must hold and whether it does."""
    found = []
    for name in dict.fromkeys(row.fold for row in rows):
        own = {row.neighbours: row for row in rows if row.fold == name}
        same = len({row.sha256 for row in own.values()}) == 1
        found.append((f"{name}: the same bytes however busy the machine", same))
        if 0 in own and 2 in own:
            times = own[2].seconds / own[0].seconds
            found.append(
                (f"{name}: {times:.1f} times the quiet time with two neighbours, at most {MOST}", times <= MOST)
            )
    return found


def page(rows: Sequence[Row], load: float) -> str:
    """Return the table as Markdown."""
    lines = [
        "# Folds on shared cores",
        "",
        "Reproduce with `python -m benchmarks.shared_cores --page benchmarks/shared_cores.md` on a machine that does",
        f"nothing else. {usable_cores()} cores; load average before: {load:.1f}. A neighbour is one process per core",
        "that computes without a pause. Seconds include starting Python and importing torch; *computed* is user and",
        "system time of the process: what waiting by spinning would add to. Half of the weights are removed; accuracy",
        "is on the 2,000 bundled test images.",
        "",
        "| fold | neighbours | run on | seconds | of quiet | computed (s) | accuracy |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    quiet = {row.fold: row.seconds for row in rows if row.neighbours == 0}
    for row in rows:
        ratio = f"{row.seconds / quiet[row.fold]:.2f}" if row.fold in quiet else ""
        right = "" if row.accuracy is None else f"{row.accuracy:.2%}"
        lines.append(
            f"| {row.fold} | {row.neighbours} | {row.inputs} | {row.seconds:.1f} | {ratio} | {row.computed:.1f} "
            f"| {right} |"
        )
    lines += ["", *(f"- {text}: {'met' if ok else '**missed**'}" for text, ok in verdicts(rows))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
