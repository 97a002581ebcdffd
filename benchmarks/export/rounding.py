"""Distance from float64 that float32 alone gives a network: python -m benchmarks.export.rounding efficientnet_b0.

Printed are largest differences from torch in float64, relative to its largest output, on the inputs of
`benchmarks.export`: of torch in float64 after the inputs were moved by half a unit in the last place of float32, of
torch in float32, and of onnxruntime.
"""

import copy
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.export.runtimes import reference_samples
from onnxfold.graph.files.load import load
from testing.zoo.export import export
from testing.zoo.table import ZOO


def main() -> int:
    """Print one line per way to compute."""
    module, inputs = ZOO[sys.argv[1]]()
    with tempfile.TemporaryDirectory() as folder:
        path = export(module, inputs, Path(folder) / "model.onnx", "legacy-fused")
        feeds, outputs = reference_samples(load(path))
    samples = [np.asarray(values) for values in feeds.values()]
    signs = np.random.default_rng(0)
    moved = [x * (1.0 + 2.0**-24 * signs.choice([-1.0, 1.0], x.shape)) for x in samples]
    exact = copy.deepcopy(module).double()
    with torch.no_grad():
        truth = exact(*(torch.tensor(x, dtype=torch.float64) for x in samples)).numpy()
        found = {
            "inputs moved": exact(*(torch.tensor(x, dtype=torch.float64) for x in moved)).numpy(),
            "torch": module(*(torch.tensor(x, dtype=torch.float32) for x in samples)).numpy(),
            "onnxruntime": next(iter(outputs.values())),
        }
    scale = np.abs(truth).max()
    print(f"largest output {scale:.4g}")
    for name, values in found.items():
        print(f"{name:13} {np.abs(values - truth).max() / scale:.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
