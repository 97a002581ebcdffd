"""Fold a network right after ``torch.onnx.export``: ``python examples/after_torch_export.py``.

Needs torch and onnxscript. Put your own network in the place of the one that is built here.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import onnxfold


def network() -> nn.Module:
    """Return the network to export; this one is not trained."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    ).eval()  # fmt: skip


def main() -> None:
    """Export, fold, and say what is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("exported"), help="folder for both models")
    parser.add_argument("--sparsity", type=float, default=0.5, help="fraction of the weights to remove")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    exported, folded = arguments.out / "net.onnx", arguments.out / "net_folded.onnx"

    # A free batch size keeps the folded model usable for any number of images.
    torch.onnx.export(
        network(), (torch.zeros(2, 3, 32, 32),), exported, input_names=["image"], output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False,
    )  # fmt: skip
    result = onnxfold.fold(exported, arguments.sparsity)
    result.save(folded)
    print(result.report)
    print(f"wrote {folded}")


if __name__ == "__main__":
    main()
