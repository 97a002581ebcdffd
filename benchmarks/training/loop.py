"""Training of the reference networks: options, batches, augmentation, the loop."""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Parameters
    ----------
    epochs : int
        Passes over the images; the one-cycle schedule ends with the last.
    seed : int
        Of the order of the images and the augmentation.
    crop_padding : int
        Pixels of black around an image before a random part of its old size is cut out.
    l1 : float
        Weight of the sum of absolute weights in the loss.
    l2 : float
        Weight decay.
    batch_size : int
        Images per step; the incomplete last batch of an epoch is dropped.
    max_lr, momentum : float
        Of SGD with Nesterov momentum.
    label_smoothing : float
        Of the cross-entropy.
    device : str
        'cpu' or 'cuda'.
    bfloat16 : bool
        Whether layers compute in bfloat16 where torch.autocast lets them; weights stay in float32. A step takes half
        the time on a CPU with AVX512-BF16.
    progressive : bool
        Whether images are smaller at first: 5/8 of their height and width in the first third of the epochs, 3/4 in the
        second.
    muon : float
        How far a step of Muon moves the weight of a convolution at most, relative to its size; the rest is moved by
        SGD at half of `max_lr`. With 0, SGD moves all.

    Notes
    -----
    Both penalties apply to the weights of convolutions and linear layers, not to biases and batch normalisation.
    An image is flipped in every second epoch, so that each form of it is seen equally often.

    References
    ----------
    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv:2404.00498: alternating flips. Smith and Topin,
    "Super-Convergence", arXiv:1708.07120: the schedule. Jordan et al., "Muon", 2024, with the size of each weight kept
    as in the training of the first of these.
    """

    epochs: int
    seed: int
    crop_padding: int
    l1: float = 0.0
    l2: float = 5e-4
    batch_size: int = 128
    max_lr: float = 0.1
    momentum: float = 0.9
    label_smoothing: float = 0.1
    device: str = "cpu"
    bfloat16: bool = False
    progressive: bool = False
    muon: float = 0.0


class ConvolutionMuon(torch.optim.Muon):
    """Muon on weights of convolutions in channels_last, as matrices of a row per output channel.

    A normalisation follows each of these layers, so that the size of its weight is free: its Frobenius norm is kept at
    the square root of the number of rows, which a step of orthogonal rows has, too. The learning rate is relative.
    """

    def __init__(self, weights: Sequence[Tensor], lr: float) -> None:
        self._weights = weights
        self._matrices = [nn.Parameter(_matrix(weight.detach())) for weight in weights]
        super().__init__(self._matrices, lr=lr, weight_decay=0.0, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the weights, which share their memory with the matrices."""
        for weight, matrix in zip(self._weights, self._matrices, strict=True):
            assert weight.grad is not None
            matrix.grad = _matrix(weight.grad.contiguous(memory_format=torch.channels_last))
        super().step(closure)  # type: ignore[no-untyped-call]
        for matrix in self._matrices:
            matrix.mul_(len(matrix) ** 0.5 / matrix.norm())


def _matrix(weight: Tensor) -> Tensor:
    """Return a view of shape (channels, height * width * inputs) of a weight in channels_last."""
    return weight.permute(0, 2, 3, 1).view(len(weight), -1)


def shuffled_batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the indices of one epoch's batches; the incomplete last one is dropped."""
    order = torch.randperm(n, generator=generator)
    for start in range(0, n - batch_size + 1, batch_size):
        yield order[start : start + batch_size]


def flip_and_crop(images: Tensor, flipped: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Flip some images left to right and shift each by up to `padding` pixels each way.

    Parameters
    ----------
    images : Tensor of uint8, shape (n, height, width, channels)
    flipped : Tensor of bool, shape (n,)
        Images that are flipped.
    padding : int
        Pixels of black that come in at the borders.
    generator : torch.Generator
        Source of the shifts, on the CPU.

    Returns
    -------
    Tensor of uint8, shape (n, height, width, channels)
    """
    n, height, width, _ = images.shape
    dy, dx = torch.randint(2 * padding + 1, (2, n, 1), generator=generator)
    rows = torch.arange(height) + dy
    columns = torch.where(flipped[:, None], torch.arange(width).flip(0), torch.arange(width)) + dx
    padded = nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    index, rows, columns = (
        i.to(images.device, non_blocking=True)
        for i in (torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None])
    )
    return padded[index, rows, columns]


def shown_size(epoch: int, epochs: int, size: int) -> int:
    """Return the height and width of the images of an epoch, counted from 1, where the first are smaller."""
    return size * (5, 6, 8)[3 * (epoch - 1) // epochs] // 8


def _optimizers(
    model: nn.Module, recipe: Recipe, steps: int
) -> list[tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]]:
    """Return SGD, and Muon where the recipe asks for it, each with its schedule; an epoch has `steps` steps."""
    weights = [p for p in model.parameters() if p.ndim > 1]
    # A matrix of one column per channel has no directions to balance.
    convolutions = [p for p in weights if recipe.muon and p.ndim == 4 and p.shape[1] > 1]
    by_muon = set(convolutions)
    sgd = torch.optim.SGD(
        [
            {"params": [p for p in weights if p not in by_muon], "weight_decay": recipe.l2},
            {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=recipe.max_lr,
        momentum=recipe.momentum,
        nesterov=True,
    )
    one_cycle = partial(torch.optim.lr_scheduler.OneCycleLR, total_steps=recipe.epochs * steps)
    if not convolutions:
        return [(sgd, one_cycle(sgd, max_lr=recipe.max_lr))]
    muon = ConvolutionMuon(convolutions, lr=recipe.muon)
    rest = one_cycle(sgd, max_lr=recipe.max_lr / 2)
    return [(sgd, rest), (muon, one_cycle(muon, max_lr=recipe.muon, cycle_momentum=False))]


def fit(
    model: nn.Module,
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint8],
    normalisation: tuple[Sequence[float], Sequence[float]],
    recipe: Recipe,
    checkpoint: Path | None = None,
) -> list[dict[str, Any]]:
    """Train a model in place, and leave it on the CPU in evaluation mode.

    Parameters
    ----------
    model : Module
        Freshly initialised, reads float32 (n, channels, height, width), returns logits.
    images : ndarray of uint8, shape (n, height, width, channels)
        Raw pixels.
    labels : ndarray of uint8, shape (n,)
        Their classes.
    normalisation : pair of sequences of float
        Mean and standard deviation per channel, of pixels scaled to [0, 1].
    recipe : Recipe
        Schedule and penalties.
    checkpoint : Path, optional
        File that holds the state after each epoch. Where it exists, training goes on from it.

    Returns
    -------
    list of dict
        Per epoch: mean training loss, learning rate at its end, seconds.
    """
    generator = torch.Generator().manual_seed(recipe.seed)
    device = torch.device(recipe.device)
    torch.backends.cudnn.benchmark = True  # a few shapes, thousands of steps
    # On the CPU, VGG11 takes a quarter less time per step than with channels in front.
    model.to(device=device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    x, y = torch.from_numpy(images).to(device), torch.from_numpy(labels.astype(np.int64)).to(device)
    mean, std = (255 * torch.tensor(values, device=device) for values in normalisation)
    steps = len(x) // recipe.batch_size
    optimizers = _optimizers(model, recipe, steps)
    weights = [p for p in model.parameters() if p.ndim > 1]
    criterion = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
    history: list[dict[str, Any]] = []
    flipped = torch.rand(len(x), generator=generator) < 0.5
    parts: dict[str, Any] = {"model": model}
    for i, (optimizer, scheduler) in enumerate(optimizers):
        parts |= {f"optimizer {i}": optimizer, f"scheduler {i}": scheduler}
    if checkpoint is not None and checkpoint.is_file():
        state = torch.load(checkpoint)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        generator.set_state(state["generator"])
        history = state["history"]
    for epoch in range(len(history) + 1, recipe.epochs + 1):
        start = time.perf_counter()
        size = shown_size(epoch, recipe.epochs, x.shape[1]) if recipe.progressive else x.shape[1]
        total_loss = torch.zeros((), device=device)
        lr = 0.0
        for batch in shuffled_batches(len(x), recipe.batch_size, generator):
            flips = flipped[batch] ^ bool(epoch % 2)
            batch = batch.to(device, non_blocking=True)
            pixels = (flip_and_crop(x[batch], flips, recipe.crop_padding, generator) - mean) / std
            shown = pixels.permute(0, 3, 1, 2)
            if size < x.shape[1]:
                shown = nn.functional.interpolate(shown, (size, size), mode="bilinear", antialias=True)
            # Pixels come channels last, so the permutation is the memory format of the weights.
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.bfloat16):
                loss = criterion(model(shown), y[batch])
            total_loss += loss.detach()
            if recipe.l1:
                loss = loss + recipe.l1 * torch.stack([weight.abs().sum() for weight in weights]).sum()
            model.zero_grad()
            loss.backward()
            lr = optimizers[-1][0].param_groups[0]["lr"]
            for optimizer, scheduler in optimizers:
                optimizer.step()
                scheduler.step()
        history.append(
            {
                "epoch": epoch,
                "train_loss": round(total_loss.item() / steps, 5),
                "lr": float(f"{lr:.6g}"),
                "seconds": round(time.perf_counter() - start, 1),
            }
        )
        print(f"epoch {epoch}/{recipe.epochs}: {history[-1]}", flush=True)
        if checkpoint is not None:
            kept = {name: part.state_dict() for name, part in parts.items()}
            unfinished = checkpoint.with_suffix(".part")
            torch.save(kept | {"generator": generator.get_state(), "history": history}, unfinished)
            unfinished.replace(checkpoint)
    model.to(device="cpu", memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    return history


def add_arguments(parser: argparse.ArgumentParser, *, epochs: int) -> None:
    """Add the options that all training scripts have, `epochs` being the default number."""
    parser.add_argument("--data", type=Path, required=True, help="folder with the data set")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the ONNX files and the log to")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--seed", type=int, default=0)
    penalty = parser.add_mutually_exclusive_group()
    penalty.add_argument("--l1", type=float, help="weight of the sum of absolute weights, in place of weight decay")
    penalty.add_argument("--l2", type=float, help=f"weight decay (default: {Recipe.l2:g})")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16 what torch.autocast lets")
    parser.add_argument(
        "--muon",
        type=float,
        default=Recipe.muon,
        metavar="RATE",
        help="move convolutions by Muon with steps of this size relative to theirs, in batches of twice as many images",
    )
    parser.add_argument("--progressive", action="store_true", help="smaller images in the first epochs")
    parser.add_argument("--checkpoint", type=Path, help="file to keep the state in after each epoch, and to go on from")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch on the CPU; the weights depend on it")


def parse_recipe(
    parser: argparse.ArgumentParser, args: argparse.Namespace, *, crop_padding: int, max_lr: float
) -> Recipe:
    """Check the options of :func:`add_arguments`, seed torch, and return the recipe they describe."""
    if args.epochs < 1:
        parser.error("--epochs must be at least 1")
    if min(args.l1 or 0.0, args.l2 or 0.0, args.muon) < 0:
        parser.error("--l1, --l2 and --muon must not be negative")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device; use --device cpu")
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    l1 = 0.0 if args.l1 is None else args.l1
    l2 = args.l2 if args.l2 is not None else Recipe.l2 if args.l1 is None else 0.0
    return Recipe(
        epochs=args.epochs,
        seed=args.seed,
        crop_padding=crop_padding,
        max_lr=max_lr,
        l1=l1,
        l2=l2,
        device=args.device,
        bfloat16=args.bfloat16,
        progressive=args.progressive,
        muon=args.muon,
        batch_size=2 * Recipe.batch_size if args.muon else Recipe.batch_size,
    )


def penalty_suffix(args: argparse.Namespace) -> str:
    """Return what a file name says of ``--l1`` and ``--l2``: nothing where neither was given."""
    if args.l1 is not None:
        return f"_l1-{args.l1:g}"
    return "" if args.l2 is None else f"_l2-{args.l2:g}"
