"""Train a reference network on CIFAR-10 and export it to ONNX, with batch normalisation and fused.

Usage: python -m benchmarks.training.cifar10 --data DIR --out DIR --net NET --width W [--epochs E] ...

DIR with data is what ``python -m benchmarks.datasets.fetch_cifar10`` writes. The width is the number of channels of
the stem of a ResNet, or a factor on the channels of VGG11 and MobileNetV2.
Written are <net>_w<W>[_l1-X|_l2-X][_s<SEED>][_c<FIRST>-<LAST>]_cifar10_{bn,fused}.onnx and a .json log.
--classes 0-4 trains on these classes alone, with a logit for each: half of a network to merge.
The number of epochs is fixed; the test split is evaluated once, at the end.

With --bfloat16, on 10,000 test images:

    --net resnet18 --width 64 --epochs 12 --muon 0.05 --threads 2        93.37 %   75 minutes on two cores with AMX
    --net resnet18 --width 64 --epochs 50 --muon 0.03 --device cuda      94.89 %   6 minutes
    --net resnet18 --width 64 --epochs 40 --device cuda                  93.99 %   4 minutes
    --net vgg11_bn --width 1 --epochs 14 --muon 0.02 --threads 2         91.41 %   41 minutes
    --net vgg11_bn --width 1 --epochs 50 --muon 0.02 --device cuda       92.88 %   3 minutes
    --net vgg11_bn --width 1 --epochs 80 --device cuda                   91.90 %   4 minutes
    --net vgg11_bn --width 0.25 --epochs 30 --device cuda                87.15 %   4 minutes
    --net vgg11_bn --width 0.5 --epochs 30 --device cuda                 89.93 %   4 minutes
    --net vgg11_bn --width 0.75 --epochs 30 --device cuda                90.88 %   5 minutes
    --net resnet18 --width 32 --epochs 30 --device cuda                  92.96 %   6 minutes
    --net resnet18 --width 32 --epochs 30 --l1 3e-5 --device cuda        92.23 %   7 minutes
    --net resnet18 --width 32 --epochs 30 --l2 2e-3 --device cuda        92.58 %   6 minutes

Those on CUDA had an H100 with others of them at the same time.
THP_MEM_ALLOC_ENABLE=1 in the environment takes a fifth off a step on Linux.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from benchmarks.datasets import cifar10
from benchmarks.training.export import write_network
from benchmarks.training.loop import add_arguments, fit, parse_recipe, penalty_suffix
from benchmarks.training.networks import mobilenet_v2, resnet18, thin_resnet, vgg11_bn

CROP_PADDING = 4
MAX_LR = 0.1
CLASSES = 10
#: Builders by name: those whose width is a factor, and those whose width is a number of channels.
BY_FACTOR: dict[str, Callable[..., nn.Module]] = {"vgg11_bn": vgg11_bn, "mobilenet_v2": mobilenet_v2}
BY_CHANNELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet20": partial(thin_resnet, 3),
    "resnet56": partial(thin_resnet, 9),
}
T = TypeVar("T", np.uint8, np.float32)


def load_train(data: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Read the raw training split: images uint8 (50000, 32, 32, 3), labels uint8 (50000,)."""
    path = data / "cifar10_train.npz"
    if not path.is_file():
        fetch = f"python -m benchmarks.datasets.fetch_cifar10 --out {data}"
        raise FileNotFoundError(f"{path} does not exist; {fetch} fetches it")
    with np.load(path) as archive:
        return archive["x"], archive["y"]


def parse_classes(text: str) -> range:
    """Read ``FIRST-LAST``, both included.

    Raises
    ------
    ValueError
        If these are no classes of CIFAR-10, at least two.
    """
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) < int(last) < CLASSES):
        raise ValueError(f"--classes {text}: write two classes from 0 to {CLASSES - 1}, for example 0-4")
    return range(int(first), int(last) + 1)


def of_classes(
    images: npt.NDArray[T], labels: npt.NDArray[np.uint8], classes: range
) -> tuple[npt.NDArray[T], npt.NDArray[np.uint8]]:
    """Return the images of some classes, and their labels counted from the first of these."""
    chosen = (labels >= classes.start) & (labels < classes.stop)
    return images[chosen], (labels[chosen] - classes.start).astype(np.uint8)


def build(net: str, width: float, classes: int = CLASSES) -> nn.Module:
    """Return an untrained network.

    Raises
    ------
    ValueError
        If the width leaves a fraction of a channel.
    """
    if net in BY_FACTOR:
        return BY_FACTOR[net](width, classes=classes)
    if width < 1 or width != round(width):
        raise ValueError(f"--width {width:g}: the width of {net} is its number of channels, a whole number")
    return BY_CHANNELS[net](round(width), classes=classes)


def main() -> int:
    """Train, export, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=(*BY_CHANNELS, *BY_FACTOR), required=True)
    parser.add_argument(
        "--width", type=float, required=True, help="channels of the stem, or factor for VGG11 and MobileNetV2"
    )
    parser.add_argument("--classes", default=f"0-{CLASSES - 1}", help="first and last class, for example 0-4")
    add_arguments(parser, epochs=10)
    args = parser.parse_args()
    recipe = parse_recipe(parser, args, crop_padding=CROP_PADDING, max_lr=MAX_LR)
    try:
        classes = parse_classes(args.classes)
        model = build(args.net, args.width, len(classes))
        images, labels = of_classes(*load_train(args.data), classes)
        test_split = of_classes(*cifar10.load_test(args.data), classes)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    history = fit(model, images, labels, (cifar10.MEAN, cifar10.STD), recipe, args.checkpoint)
    seconds = round(sum(epoch["seconds"] for epoch in history), 1)
    record = {"net": args.net, "width": args.width, "classes": list(classes), "seconds": seconds}
    record |= {"recipe": asdict(recipe), "history": history}
    seed = f"_s{args.seed}" if args.seed else ""
    part = f"_c{args.classes}" if len(classes) < CLASSES else ""
    stem = f"{args.net}_w{args.width:g}{penalty_suffix(args)}{seed}{part}_cifar10"
    write_network(model, args.out, stem, test_split, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
