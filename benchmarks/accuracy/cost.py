"""Time by phase, and extra memory, of one fold in a separate process.

Usage: python -m benchmarks.accuracy.cost MODEL.onnx --inputs auto|dead-leaves --allocation uniform|global [--seed 0]

Prints one JSON object. Extra memory is the peak of the process above what it held when everything was imported.
"""

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import onnxfold
from benchmarks.accuracy.measure import Stopwatch
from benchmarks.accuracy.networks import Network, parse_name

SPARSITY = 0.5
#: (inputs, allocation) of the folds.
CHOICES = (("dead-leaves", "uniform"), ("auto", "uniform"), ("dead-leaves", "global"), ("auto", "global"))
#: The width that the goals are set for.
_WIDTH = 64
#: What a fold imports while it runs.
_LAZY = ("torch", "onnxruntime", "sklearn.cluster", "onnxfold.api", "onnxfold.inputs.inversion.invert")


def main() -> None:
    """Fold once and print the cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--inputs", default="auto")
    parser.add_argument("--allocation", default="uniform")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for name in _LAZY:
        import_module(name)
    before = _peak()
    watch, start = Stopwatch(), time.perf_counter()
    result = onnxfold.fold(
        args.model,
        SPARSITY,
        inputs=args.inputs,
        allocation=args.allocation,
        seed=args.seed,
        cache=None,
        progress=watch,
    )
    seconds = time.perf_counter() - start
    inputs = result.report.inputs
    row = {
        "seconds": round(seconds, 2),
        "extra_mib": round((_peak() - before) / 2**20, 1),
        "phases": watch.phases(),
        "passes": {p.name: round(p.seconds, 3) for p in result.report.passes if p.seconds >= 0.001},
        "input_kind": inputs.kind if inputs is not None else "none",
        "input_reason": inputs.reason if inputs is not None else "",
        "removed": result.report.sparsity,
    }
    print(json.dumps(row))


def measure(path: Path, inputs: str, allocation: str) -> dict[str, Any]:
    """Run :func:`main` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.accuracy.cost",
        str(path),
        "--inputs",
        inputs,
        "--allocation",
        allocation,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def networks(found: list[Network], folder: Path) -> list[Network]:
    """Return the ResNet18s for CIFAR-10 with BatchNormalizations; one of width 64 is made, untrained, if none is there.

    What a fold costs does not depend on whether the network was trained.
    """
    chosen = [n for n in found if n.family == "resnet18" and n.form == "bn" and n.dataset == "cifar10"]
    if any(n.width == _WIDTH for n in chosen):
        return chosen
    path = folder / f"untrained-resnet18_w{_WIDTH}_cifar10_bn.onnx"
    if not path.exists():
        path.write_bytes(_untrained())
    named = parse_name(path.with_name(path.name.removeprefix("untrained-")))
    assert named is not None
    return [*chosen, Network(path.stem, path, named.family, named.width, "", named.dataset, named.form)]


def _untrained() -> bytes:
    import torch

    from benchmarks.training.export import count_batch_norms, export_onnx
    from benchmarks.training.networks import resnet18

    torch.manual_seed(0)
    network = resnet18(_WIDTH)
    network(torch.randn(256, 3, 32, 32))  # in training mode: statistics that fit its activations
    return export_onnx(network, (3, 32, 32), count_batch_norms(network))


def _peak() -> int:
    """Return the largest resident size so far, in bytes; getrusage would count the parent's before the exec too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:", 1)[1].split(maxsplit=1)[0]) * 1024


if __name__ == "__main__":
    main()
