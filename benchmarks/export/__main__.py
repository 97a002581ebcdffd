"""TFLite exports: outputs in three runtimes; time, memory, size and latency compared with onnx2tf.

Usage: python -m benchmarks.export --tflite-runtime PYTHON --tflite-micro PYTHON --onnx2tf PROGRAM
           [--only NAME ...] [--out benchmarks/export.md]

The runtimes that need environments of their own are given by their interpreters:
    python3.11 -m venv rt   && rt/bin/pip install tflite-runtime==2.14.0 "numpy<2"
    python3.11 -m venv tflm && tflm/bin/pip install tflite-micro
    python3.12 -m venv o2t  && o2t/bin/pip install onnx2tf
Every network is exported dense and folded at 50 % (fold-ar); nothing is left out: what is refused or differs is a row.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.export.comparison import comparison
from benchmarks.export.page import render
from benchmarks.export.parity import parity


def main() -> None:
    """Export, run, write the tables."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tflite-runtime", type=Path, help="Python of an environment with tflite-runtime 2.14")
    parser.add_argument("--tflite-micro", type=Path, help="Python of an environment with tflite-micro")
    parser.add_argument("--onnx2tf", type=Path, help="the onnx2tf program")
    parser.add_argument("--only", nargs="*", help="names of networks")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/export.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    pythons = {
        "ai_edge_litert": Path(sys.executable),
        "tflite_runtime": args.tflite_runtime,
        "tflite_micro": args.tflite_micro,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = list(parity(folder, {k: p for k, p in pythons.items() if p is not None}, args.only))
        beside = comparison(folder, args.onnx2tf) if args.onnx2tf else []
    args.out.write_text(render(rows, beside), encoding="utf-8")
    print(args.out.read_text())


if __name__ == "__main__":
    main()
