"""Accuracy of a folded network before and after retraining in torch, as docs/finetune.md does it.

Usage: python -m benchmarks.finetune --data DIR [--model FILE] [--sparsity 0.7 0.9] [--epochs 1] [--rate 0.01]

DIR holds the files of Fashion-MNIST; the model is the bundled LeNet5-2x if none is given. The accuracy is that of
onnxruntime on the 10,000 test images, of the file that was written.
"""

import argparse
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import onnxfold
from benchmarks.datasets.fashion_mnist import load_split, preprocess_padded
from onnxfold.fidelity.measures import accuracy
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array

_BATCH = 128


def main() -> None:
    """Print a row per sparsity."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path(str(files("onnxfold.data") / "lenet5_2x.onnx")))
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.7, 0.9])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.01)
    args = parser.parse_args()
    train, test = _images(args.data, "train"), _images(args.data, "test")
    print(f"| weights removed | folded | retrained (epochs: {args.epochs}) |\n|---:|---:|---:|")
    print(f"| 0 % | {_accuracy(args.model, *test):.2%} | |")
    for sparsity in args.sparsity:
        with tempfile.TemporaryDirectory() as folder:
            folded = onnxfold.fold(args.model, sparsity).save(Path(folder) / "folded.onnx")
            retrained = Path(folder) / "retrained.onnx"
            _retrain(folded, retrained, *map(torch.from_numpy, train), args.epochs, args.rate)
            found = [_accuracy(path, *test) for path in (folded, retrained)]
        print(f"| {sparsity:.0%} | {found[0]:.2%} | {found[1]:.2%} |", flush=True)


def _images(data: Path, split: Literal["train", "test"]) -> tuple[Array, Array]:
    images, labels = load_split(data, split)
    return preprocess_padded(images), labels.astype(np.int64)


def _retrain(source: Path, target: Path, x: torch.Tensor, y: torch.Tensor, epochs: int, rate: float) -> None:
    torch.manual_seed(0)
    net = onnxfold.to_torch(source)
    steps = epochs * -(-len(x) // _BATCH)
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(_BATCH):
            loss = torch.nn.functional.cross_entropy(net(x[part]), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.to_onnx(target)


def _accuracy(path: Path, x: Array, y: Array) -> float:
    session = Session(path)
    return accuracy(session.run_in_batches({session.inputs[0].name: x}), y)


if __name__ == "__main__":
    main()
