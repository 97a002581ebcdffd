"""Published layouts of any width that know the shape of their input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from testing.zoo.blocks import Residual, classifier_layers, conv_bn_layers, make_divisible
from testing.zoo.prepare import AFFINE, LINEAR, draw_weights, fit_statistics

Stem = Literal["imagenet", "cifar"]


class Net(nn.Module):
    """A network that knows the shape of one input sample."""

    def __init__(self, input_shape: tuple[int, ...], body: nn.Module) -> None:
        super().__init__()
        self.input_shape = input_shape
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def example_input(module: Net, batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, *module.input_shape, generator=torch.Generator().manual_seed(seed))


def vgg11_bn(
    num_classes: int = 10, width: int = 64, input_size: int = 32, classifier: Literal["imagenet", "small"] = "small"
) -> Net:
    """VGG-11 with batch norm; ``width=64, input_size=224, classifier="imagenet"`` is the published layout."""
    layers: list[nn.Module] = []
    inputs, spatial = 3, input_size
    for item in (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"):
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            spatial //= 2
            continue
        # The published VGG keeps the bias of a convolution in front of batch norm.
        layers += [nn.Conv2d(inputs, item * width, 3, padding=1), nn.BatchNorm2d(item * width), nn.ReLU()]
        inputs = item * width
    if classifier == "imagenet":
        layers.append(nn.AdaptiveAvgPool2d(7))
        spatial, hidden = 7, [64 * width, 64 * width]
    else:
        hidden = [8 * width]
    layers.append(nn.Flatten())
    features = inputs * spatial * spatial
    for size in hidden:
        layers += [nn.Linear(features, size), nn.ReLU(), nn.Dropout()]
        features = size
    return Net((3, input_size, input_size), nn.Sequential(*layers, nn.Linear(features, num_classes)))


def _basic(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [*conv_bn_layers(inputs, width, 3, stride), *conv_bn_layers(width, width, act=None)]


def _bottleneck(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [
        *conv_bn_layers(inputs, width, 1),
        *conv_bn_layers(width, width, 3, stride),
        *conv_bn_layers(width, 4 * width, 1, act=None),
    ]


def _resnet(
    block: Callable[[int, int, int], list[nn.Module]],
    expansion: int,
    depths: tuple[int, ...],
    num_classes: int,
    width: int,
    stem: Stem,
    input_size: int,
) -> Net:
    layers: list[nn.Module]
    layers = conv_bn_layers(3, width, 7, 2) if stem == "imagenet" else conv_bn_layers(3, width)
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, 2, padding=1))
    inputs = width
    for stage, depth in enumerate(depths):
        planes = width * 2**stage
        outputs = planes * expansion
        for index in range(depth):
            stride = 2 if stage and index == 0 else 1
            project = stride != 1 or inputs != outputs
            shortcut = nn.Sequential(*conv_bn_layers(inputs, outputs, 1, stride, act=None)) if project else None
            layers.append(Residual(nn.Sequential(*block(inputs, planes, stride)), shortcut, nn.ReLU()))
            inputs = outputs
    return Net((3, input_size, input_size), nn.Sequential(*layers, *classifier_layers(inputs, num_classes)))


def resnet18(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", input_size: int | None = None) -> Net:
    """ResNet-18; ``num_classes=1000, stem="imagenet"`` is the published layout."""
    size = input_size or (224 if stem == "imagenet" else 32)
    return _resnet(_basic, 1, (2, 2, 2, 2), num_classes, width, stem, size)


def resnet50(num_classes: int = 10, width: int = 64, stem: Stem = "cifar", input_size: int | None = None) -> Net:
    """ResNet-50 (stride in the 3x3); ``num_classes=1000, stem="imagenet"`` is the published layout."""
    size = input_size or (224 if stem == "imagenet" else 32)
    return _resnet(_bottleneck, 4, (3, 4, 6, 3), num_classes, width, stem, size)


def mobilenet_v2(
    num_classes: int = 10,
    width_mult: float = 1.0,
    stem: Stem = "cifar",
    input_size: int | None = None,
    divisor: int = 8,
) -> Net:
    """MobileNetV2; ``num_classes=1000, stem="imagenet"`` is the published layout, ``divisor`` rounds the widths."""
    stride = 2 if stem == "imagenet" else 1
    size = input_size or (224 if stem == "imagenet" else 32)
    inputs = make_divisible(32 * width_mult, divisor)
    layers = conv_bn_layers(3, inputs, 3, stride, act=nn.ReLU6)
    settings = ((1, 16, 1, 1), (6, 24, 2, stride), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
    for expand, channels, repeats, first in (*settings, (6, 320, 1, 1)):
        outputs = make_divisible(channels * width_mult, divisor)
        for index in range(repeats):
            step = first if index == 0 else 1
            hidden = inputs * expand
            branch = nn.Sequential(
                *(conv_bn_layers(inputs, hidden, 1, act=nn.ReLU6) if expand != 1 else []),
                *conv_bn_layers(hidden, hidden, 3, step, groups=hidden, act=nn.ReLU6),
                *conv_bn_layers(hidden, outputs, 1, act=None),
            )
            layers.append(Residual(branch) if step == 1 and inputs == outputs else branch)
            inputs = outputs
    # The published layout never narrows the last layer; the narrow ones of the tests do.
    last = make_divisible(1280 * (max(1.0, width_mult) if stem == "imagenet" else width_mult), divisor)
    layers += conv_bn_layers(inputs, last, 1, act=nn.ReLU6)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, num_classes)]
    return Net((3, size, size), nn.Sequential(*layers, *head))


def mlp_bn(num_classes: int = 10, widths: tuple[int, ...] = (32, 24), inputs: int = 20) -> Net:
    layers: list[nn.Module] = []
    features = inputs
    for width in widths:
        layers += [nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU()]
        features = width
    return Net((inputs,), nn.Sequential(*layers, nn.Linear(features, num_classes)))


class SequentialSqueezeExcite(nn.Module):
    """Squeeze-and-excitation whose gate is one nn.Sequential."""

    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeeze, 1),
            nn.ReLU(),
            nn.Conv2d(squeeze, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.gate(x)
        return out


def squeeze_excite_net(
    num_classes: int = 10, width: int = 16, input_size: int = 16, act: type[nn.Module] = nn.ReLU
) -> Net:
    """Two residual squeeze-excite blocks; ``act=nn.SiLU`` gives the EfficientNet flavour."""
    layers = conv_bn_layers(3, width, act=act)
    for _ in range(2):
        body = [*conv_bn_layers(width, 2 * width, act=act), SequentialSqueezeExcite(2 * width, max(4, width // 2))]
        layers.append(Residual(nn.Sequential(*body, *conv_bn_layers(2 * width, width, act=None)), act=act()))
    return Net((3, input_size, input_size), nn.Sequential(*layers, *classifier_layers(width, num_classes)))


def autoencoder(width: int = 12, input_size: int = 16) -> Net:
    body = nn.Sequential(
        *conv_bn_layers(3, width, 3, 2),
        *conv_bn_layers(width, 2 * width, 3, 2),
        nn.ConvTranspose2d(2 * width, width, 3, 2, padding=1, output_padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 2, 2),
        nn.Sigmoid(),
    )
    return Net((3, input_size, input_size), body)


def seeded(net: Net, seed: int, batch: int | None = None, passes: int = 3) -> Net:
    """Draw all weights from a seed, set batch norm statistics that fit them, leave the network in eval mode."""
    if batch is None:
        batch = 16 if max(net.input_shape) <= 64 else 4
    # fork_rng: a test that calls this must not disturb the random state of another one.
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        draw_weights(m for m in net.modules() if isinstance(m, LINEAR))
        draw_weights(m for m in net.modules() if isinstance(m, AFFINE))
        fit_statistics(net, lambda: (torch.randn(batch, *net.input_shape),), passes)
    return net
