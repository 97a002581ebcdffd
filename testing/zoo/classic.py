"""LeNet, AlexNet, VGG, SqueezeNet: plain stacks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from testing.zoo.blocks import Branches


def lenet5(num_classes: int = 10) -> nn.Module:
    """LeNet-5 for 28x28 grey images."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, num_classes),
    )  # fmt: skip


class AlexNet(nn.Module):
    """The one-tower AlexNet of torchvision; `pooled` is 6 for 224 pixels."""

    def __init__(self, width: int = 8, hidden: int = 64, pooled: int = 3, num_classes: int = 10) -> None:
        super().__init__()
        w = width
        self.features = nn.Sequential(
            nn.Conv2d(3, w, 11, 4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(w, 3 * w, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
            nn.Conv2d(3 * w, 6 * w, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(6 * w, 4 * w, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(4 * w, 4 * w, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(pooled)
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(4 * w * pooled**2, hidden), nn.ReLU(inplace=True),
            nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        out: Tensor = self.classifier(torch.flatten(self.pool(self.features(x)), 1))
        return out


def alexnet_2012(width: int = 8, hidden: int = 64, num_classes: int = 10) -> nn.Module:
    """The published AlexNet: two towers as grouped convolutions, local response normalisation. 127 pixels."""
    w = width
    return nn.Sequential(
        nn.Conv2d(3, 2 * w, 11, 4, padding=2), nn.ReLU(), nn.LocalResponseNorm(5, k=2.0), nn.MaxPool2d(3, 2),
        nn.Conv2d(2 * w, 6 * w, 5, padding=2, groups=2), nn.ReLU(), nn.LocalResponseNorm(5, k=2.0), nn.MaxPool2d(3, 2),
        nn.Conv2d(6 * w, 8 * w, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8 * w, 8 * w, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(8 * w, 6 * w, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(54 * w, hidden), nn.ReLU(), nn.Dropout(),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, num_classes),
    )  # fmt: skip


def vgg16(width: int = 8, hidden: int = 64, num_classes: int = 10) -> nn.Module:
    """VGG-16 without batch norm, for 32 pixels."""
    layers: list[nn.Module] = []
    inputs = 3
    for item in (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0):
        if item == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, item * width, 3, padding=1), nn.ReLU(inplace=True)]
        inputs = item * width
    layers += [nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Dropout()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(hidden, num_classes)]
    return nn.Sequential(*layers)


def _fire(inputs: int, squeeze: int, expand: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, squeeze, 1),
        nn.ReLU(inplace=True),
        Branches(
            nn.Sequential(nn.Conv2d(squeeze, expand, 1), nn.ReLU(inplace=True)),
            nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU(inplace=True)),
        ),
    )


def squeezenet(width: int = 4, num_classes: int = 10) -> nn.Module:
    """SqueezeNet 1.1: fire modules, a convolution as classifier."""
    w = width
    pool = [nn.MaxPool2d(3, 2, ceil_mode=True) for _ in range(3)]
    return nn.Sequential(
        nn.Conv2d(3, 4 * w, 3, 2), nn.ReLU(inplace=True), pool[0],
        _fire(4 * w, w, 4 * w), _fire(8 * w, w, 4 * w), pool[1],
        _fire(8 * w, 2 * w, 8 * w), _fire(16 * w, 2 * w, 8 * w), pool[2],
        _fire(16 * w, 3 * w, 12 * w), _fire(24 * w, 3 * w, 12 * w), _fire(24 * w, 4 * w, 16 * w),
        _fire(32 * w, 4 * w, 16 * w),
        nn.Dropout(), nn.Conv2d(32 * w, num_classes, 1), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
