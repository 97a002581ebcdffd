"""Train the two bundled LeNet-5 models on Fashion-MNIST and write everything in ``onnxfold/data``.

Run as ``python -m benchmarks.training.lenet5 --data DIR``, DIR holding the four Fashion-MNIST idx files.
The test split plays no part in training: the number of epochs is fixed, and each model is
evaluated on it once at the end.
Where other jobs share the processor, ``OMP_WAIT_POLICY=PASSIVE`` in the environment keeps the threads from spinning.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.datasets.fashion_mnist import MEAN, PADDING, STD, load_split, preprocess_padded
from benchmarks.training.export import (
    LOGIT_TOLERANCE,
    OPSET,
    accuracy,
    count_batch_norms,
    environment,
    export_onnx,
    onnxruntime_logits,
    torch_logits,
)
from benchmarks.training.loop import shuffled_batches

NUM_CLASSES = 10
BATCH_SIZE = 128
MAX_LR = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
MAX_SHIFT = PADDING  # never moves a pixel of the garment out of the 32x32 frame
NUM_BUNDLED_IMAGES = 2000
DEFAULT_OUT = Path(__file__).resolve().parents[2] / "onnxfold" / "data"


@dataclass(frozen=True)
class Architecture:
    """Widths of one LeNet-5, and the name its file gets."""

    name: str
    conv_channels: tuple[int, int]
    fc_features: tuple[int, int]


ARCHITECTURES = (
    Architecture("lenet5_2x", conv_channels=(16, 64), fc_features=(512, 256)),
    Architecture("lenet5", conv_channels=(6, 16), fc_features=(120, 84)),
)


class LeNet5(nn.Module):
    """LeNet-5 with batch normalisation, ReLU and max pooling, for 1x32x32 images.

    Parameters
    ----------
    architecture : Architecture
        Widths of the two convolutions and the two hidden fully connected layers.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        c1, c2 = architecture.conv_channels
        f1, f2 = architecture.fc_features
        # The biases ahead of the batch normalisations are redundant in training, but a Linear without
        # one exports as Transpose + MatMul instead of Gemm.
        self.conv1 = nn.Conv2d(1, c1, kernel_size=5)
        self.bn1 = nn.BatchNorm2d(c1)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(c1, c2, kernel_size=5)
        self.bn2 = nn.BatchNorm2d(c2)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.fc1 = nn.Linear(c2 * 5 * 5, f1)
        self.bn3 = nn.BatchNorm1d(f1)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Linear(f1, f2)
        self.bn4 = nn.BatchNorm1d(f2)
        self.relu4 = nn.ReLU()
        self.fc3 = nn.Linear(f2, NUM_CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (n, 10), of images of shape (n, 1, 32, 32)."""
        x = self.pool1(self.relu1(self.bn1(self.conv1(image))))
        x = self.pool2(self.relu2(self.bn2(self.conv2(x))))
        x = self.relu3(self.bn3(self.fc1(self.flatten(x))))
        x = self.relu4(self.bn4(self.fc2(x)))
        logits: torch.Tensor = self.fc3(x)
        return logits


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Flip each image left to right with probability 1/2 and shift it by up to two pixels each way.

    Parameters
    ----------
    images : Tensor of float32, shape (n, 1, 32, 32)
        Images whose two outermost rows and columns on every side are background.
    generator : torch.Generator
        Source of the random choices.

    Returns
    -------
    Tensor of float32, shape (n, 1, 32, 32)
    """
    n, _, height, width = images.shape
    dy, dx = torch.randint(-MAX_SHIFT, MAX_SHIFT + 1, (2, n, 1), generator=generator)
    # Wrapping round the edge only ever carries padding to the other side, where it is padding again.
    rows = (torch.arange(height) + dy) % height
    columns = (torch.arange(width) + dx) % width
    flipped = torch.rand(n, 1, generator=generator) < 0.5
    columns = torch.where(flipped, width - 1 - columns, columns)
    return images[torch.arange(n)[:, None, None], 0, rows[:, :, None], columns[:, None, :]].unsqueeze(1)


def train(
    architecture: Architecture,
    images: npt.NDArray[np.float32],
    labels: npt.NDArray[np.uint8],
    epochs: int,
    seed: int,
) -> tuple[LeNet5, list[dict[str, Any]]]:
    """Train one model from scratch for a fixed number of epochs.

    Parameters
    ----------
    architecture : Architecture
        What to train.
    images : ndarray of float32, shape (n, 1, 32, 32)
        Normalised training images.
    labels : ndarray of uint8, shape (n,)
        Their classes.
    epochs : int
        Passes over the images; the one-cycle schedule ends with the last.
    seed : int
        Seed of the initialisation, the order of the images and the augmentation.

    Returns
    -------
    model : LeNet5
        In evaluation mode.
    history : list of dict
        Per epoch: mean training loss, learning rate at its end, seconds.
    """
    # Seeded per model, so that a model does not depend on which were trained before it.
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = LeNet5(architecture)
    x, y = torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=MAX_LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    steps_per_epoch = len(x) // BATCH_SIZE
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=MAX_LR, total_steps=epochs * steps_per_epoch)
    criterion = nn.CrossEntropyLoss()
    history: list[dict[str, Any]] = []
    model.train()
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        total_loss = 0.0
        lr = 0.0
        for batch in shuffled_batches(len(x), BATCH_SIZE, generator):
            loss = criterion(model(augment(x[batch], generator)), y[batch])
            optimizer.zero_grad()
            loss.backward()
            lr = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
            total_loss += loss.item()
        seconds = time.perf_counter() - start
        history.append(
            {
                "epoch": epoch,
                "train_loss": round(total_loss / steps_per_epoch, 5),
                "lr": float(f"{lr:.6g}"),
                "seconds": round(seconds, 1),
            }
        )
        print(f"{architecture.name} epoch {epoch}/{epochs}: {history[-1]}", flush=True)
    return model.eval(), history


def build_model(
    architecture: Architecture,
    train_split: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]],
    test_split: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]],
    epochs: int,
    seed: int,
) -> tuple[bytes, dict[str, Any]]:
    """Train, export and evaluate one model.

    Parameters
    ----------
    architecture : Architecture
        What to train.
    train_split, test_split : tuple of ndarray
        Normalised images and labels.
    epochs, seed : int
        As in :func:`train`.

    Returns
    -------
    serialized : bytes
        The ONNX model.
    record : dict
        Its entry in the training log.

    Raises
    ------
    RuntimeError
        If onnxruntime does not reproduce torch's logits.
    """
    model, history = train(architecture, *train_split, epochs=epochs, seed=seed)
    images, labels = test_split
    serialized = export_onnx(model, images.shape[1:], count_batch_norms(model))
    from_torch = torch_logits(model, images)
    from_onnxruntime = onnxruntime_logits(serialized, images)
    # Logits rather than accuracy: a tie broken by rounding on another machine is no fault of the export.
    difference = float(np.abs(from_torch - from_onnxruntime).max())
    if not difference <= LOGIT_TOLERANCE:
        raise RuntimeError(f"{architecture.name}: onnxruntime's logits are off by {difference:.3g}")
    record = {
        "conv_channels": list(architecture.conv_channels),
        "fc_features": list(architecture.fc_features),
        "parameters": sum(p.numel() for p in model.parameters()),
        "seed": seed,
        "epochs": epochs,
        "test_images": len(labels),
        "test_accuracy_torch": accuracy(from_torch, labels),
        "test_accuracy_onnxruntime": accuracy(from_onnxruntime, labels),
        "max_logit_difference": float(f"{difference:.3g}"),
        "history": history,
    }
    return serialized, record


def render_readme(records: dict[str, dict[str, Any]], epochs: int, seed: int) -> str:
    """Return the text of ``README.md``.

    Parameters
    ----------
    records : dict
        The models' entries in the training log, by name.
    epochs, seed : int
        Options that regenerate the files.

    Returns
    -------
    str
        Markdown.
    """
    rows = []
    for name, record in records.items():
        widths = "/".join(str(w) for w in (*record["conv_channels"], *record["fc_features"]))
        rows.append(
            f"| `{name}.onnx` | LeNet-5 with widths {widths}, {record['parameters']:,} parameters; "
            f"{100 * record['test_accuracy_onnxruntime']:.2f} % of the {record['test_images']:,} test images right |"
        )
    models = "\n".join(rows)
    return f"""\
# Bundled models and test images

| file | what it is |
|---|---|
{models}
| `fashion_mnist_test_{NUM_BUNDLED_IMAGES}.npz` | the first {NUM_BUNDLED_IMAGES} Fashion-MNIST test images: \
`image` uint8 ({NUM_BUNDLED_IMAGES}, 28, 28), raw pixels, and `y` uint8 ({NUM_BUNDLED_IMAGES},), classes 0 to 9 |
| `training_log.json` | versions, seed, loss, learning rate and time per epoch, test accuracy in torch and \
onnxruntime |

Both models are Conv5x5-BN-ReLU-MaxPool2 twice, Flatten, FC-BN-ReLU twice, FC(10). No convolution is padded. They are
exported at opset {OPSET}, their four BatchNormalization nodes kept. Input `image`: float32 (N, 1, 32, 32); output
`logits`: float32 (N, 10).

## Preprocessing

1. Pad the raw uint8 28x28 image with {PADDING} pixels of 0 (black) on every side, to 32x32.
2. Normalise, padding included: `(x / 255 - {MEAN}) / {STD}`, in float32.

`onnxfold demo --copy DIR` writes a model, and the images so prepared with their labels as `fashion_mnist_test.npz`,
which `--data` takes.

## How the models were trained

SGD with Nesterov momentum {MOMENTUM}, one-cycle learning rate up to {MAX_LR}, weight decay {WEIGHT_DECAY}, batches of
{BATCH_SIZE}, {epochs} epochs over the 60,000 training images, with random horizontal flips and shifts of up to
{MAX_SHIFT} pixels. The number of epochs is fixed; each model was evaluated on the test split once, after the last one.

Regenerate every file here except `__init__.py`, from a folder that holds the four `*-ubyte.gz` files:

    python -m benchmarks.training.lenet5 --data DIR --epochs {epochs} --seed {seed}

Other versions, another processor or another number of threads than those in `training_log.json` may give other weights.

## Source and licence of the images

Fashion-MNIST, by Han Xiao, Kashif Rasul and Roland Vollgraf (Zalando SE),
<https://github.com/zalandoresearch/fashion-mnist>; paper:
<https://arxiv.org/abs/1708.07747>.

The MIT License (MIT), Copyright © 2017 Zalando SE, https://tech.zalando.com:

> Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
> documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
> rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
> permit persons to whom the Software is furnished to do so, subject to the following conditions:
>
> The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
> Software.
>
> THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
> WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
> COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
> OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the four Fashion-MNIST *-ubyte.gz files")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder to write to (default: onnxfold/data)")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="threads of torch; the weights depend on it")
    args = parser.parse_args()
    if args.epochs < 1:
        parser.error("--epochs must be at least 1")
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)

    train_images, train_labels = load_split(args.data, "train")
    test_images, test_labels = load_split(args.data, "test")
    train_split = preprocess_padded(train_images), train_labels
    test_split = preprocess_padded(test_images), test_labels

    serialized: dict[str, bytes] = {}
    records: dict[str, dict[str, Any]] = {}
    for architecture in ARCHITECTURES:
        name = architecture.name
        serialized[name], records[name] = build_model(architecture, train_split, test_split, args.epochs, args.seed)
        print(
            f"{name}: test accuracy {records[name]['test_accuracy_torch']:.4f} in torch, "
            f"{records[name]['test_accuracy_onnxruntime']:.4f} in onnxruntime",
            flush=True,
        )

    # Nothing is written before every model passed its checks: the files always belong to one run.
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    for name, content in serialized.items():
        (out / f"{name}.onnx").write_bytes(content)
    np.savez_compressed(
        out / f"fashion_mnist_test_{NUM_BUNDLED_IMAGES}.npz",
        image=test_images[:NUM_BUNDLED_IMAGES],
        y=test_labels[:NUM_BUNDLED_IMAGES],
    )
    log = {"environment": environment(), "models": records}
    (out / "training_log.json").write_text(json.dumps(log, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").write_text(render_readme(records, args.epochs, args.seed), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
