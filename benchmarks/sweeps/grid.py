"""The sweep that is measured: two bundled models, 8 sparsities, 3 methods, 2 seeds."""

from pathlib import Path

import onnxfold
from onnxfold.sweeps.job import SweepRequest, goals_of

_DATA = Path(onnxfold.__file__).parent / "data"
MODELS = (_DATA / "lenet5.onnx", _DATA / "lenet5_2x.onnx")
SPARSITIES, METHODS, SEEDS = "0.1:0.8:0.1", ("fold-ls", "fold-ar", "prune-l1"), 2
OPTIONS = {"inputs": "dead-leaves", "samples": 128}


def request(sparsities: str = SPARSITIES) -> SweepRequest:
    """Return the request, with other sparsities perhaps."""
    return SweepRequest(MODELS, goals_of({"sparsity": sparsities}), METHODS, SEEDS, OPTIONS)


def command(out: Path, jobs: int) -> list[str]:
    """Return the same as arguments of ``onnxfold``."""
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
    return [
        "sweep", *map(str, MODELS), "--out", str(out), "--jobs", str(jobs), "--sparsity", SPARSITIES,
        "--method", ",".join(METHODS), "--seeds", str(SEEDS), *options,
    ]  # fmt: skip
