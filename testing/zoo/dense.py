"""DenseNet and Inception: concatenation inside the backbone."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import Branches, classifier, conv_bn


class DenseLayer(nn.Module):
    """BN, ReLU, 1x1, BN, ReLU, 3x3 over everything before it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Return the new features."""
        squeezed = self.conv1(functional.relu(self.norm1(torch.cat(features, 1))))
        out: Tensor = self.conv2(functional.relu(self.norm2(squeezed)))
        return out


class DenseBlock(nn.Module):
    """Every layer reads all features before it."""

    def __init__(self, inputs: int, growth: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + i * growth, growth) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Return input and all new features."""
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


def densenet(growth: int = 8, depths: tuple[int, ...] = (3, 4, 3)) -> nn.Module:
    """DenseNet-BC: bottleneck layers, transitions that halve the channels."""
    width = 2 * growth
    layers: list[nn.Module] = [conv_bn(3, width, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
    for index, depth in enumerate(depths):
        layers.append(DenseBlock(width, growth, depth))
        width += depth * growth
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        if index < len(depths) - 1:
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, classifier(width))


def _inception(inputs: int, one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> nn.Module:
    return Branches(
        conv_bn(inputs, one, 1),
        nn.Sequential(conv_bn(inputs, three[0], 1), conv_bn(three[0], three[1], 3)),
        nn.Sequential(conv_bn(inputs, five[0], 1), conv_bn(five[0], five[1], 5)),
        nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv_bn(inputs, pool, 1)),
    )


def googlenet(width: int = 2) -> nn.Module:
    """GoogLeNet with batch norm; `width` 8 gives the published 64-channel stem."""
    w = width
    return nn.Sequential(
        conv_bn(3, 8 * w, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), conv_bn(8 * w, 8 * w, 1), conv_bn(8 * w, 24 * w),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _inception(24 * w, 8 * w, (12 * w, 16 * w), (2 * w, 4 * w), 4 * w),
        _inception(32 * w, 16 * w, (16 * w, 24 * w), (4 * w, 12 * w), 8 * w),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        _inception(60 * w, 24 * w, (12 * w, 26 * w), (2 * w, 6 * w), 8 * w),
        _inception(64 * w, 20 * w, (14 * w, 28 * w), (3 * w, 8 * w), 8 * w),
        nn.Dropout(0.2), classifier(64 * w),
    )  # fmt: skip


def _inception_a(inputs: int, w: int) -> nn.Module:
    return Branches(
        conv_bn(inputs, 4 * w, 1),
        nn.Sequential(conv_bn(inputs, 3 * w, 1), conv_bn(3 * w, 4 * w, 5)),
        nn.Sequential(conv_bn(inputs, 4 * w, 1), conv_bn(4 * w, 6 * w, 3), conv_bn(6 * w, 6 * w, 3)),
        nn.Sequential(nn.AvgPool2d(3, 1, padding=1), conv_bn(inputs, 2 * w, 1)),
    )


def _inception_b(inputs: int, w: int) -> nn.Module:
    conv = nn.Sequential(nn.Conv2d(inputs, 12 * w, 3, 2, bias=False), nn.BatchNorm2d(12 * w), nn.ReLU())
    last = nn.Sequential(nn.Conv2d(6 * w, 6 * w, 3, 2, bias=False), nn.BatchNorm2d(6 * w), nn.ReLU())
    return Branches(conv, nn.Sequential(conv_bn(inputs, 4 * w, 1), conv_bn(4 * w, 6 * w, 3), last), nn.MaxPool2d(3, 2))


def _inception_c(inputs: int, w: int) -> nn.Module:
    inner = 6 * w
    double = [conv_bn(inputs, inner, 1), conv_bn(inner, inner, (7, 1)), conv_bn(inner, inner, (1, 7))]
    return Branches(
        conv_bn(inputs, 8 * w, 1),
        nn.Sequential(conv_bn(inputs, inner, 1), conv_bn(inner, inner, (1, 7)), conv_bn(inner, 8 * w, (7, 1))),
        nn.Sequential(*double, conv_bn(inner, inner, (7, 1)), conv_bn(inner, 8 * w, (1, 7))),
        nn.Sequential(nn.AvgPool2d(3, 1, padding=1), conv_bn(inputs, 8 * w, 1)),
    )


def inception_v3(width: int = 2) -> nn.Module:
    """Inception-v3's blocks A, B and C: factorised convolutions and pooled branches."""
    w = width
    return nn.Sequential(
        conv_bn(3, 4 * w, 3, 2), conv_bn(4 * w, 8 * w), nn.MaxPool2d(3, 2),
        _inception_a(8 * w, w), _inception_a(16 * w, w), _inception_b(16 * w, w),
        _inception_c(34 * w, w), _inception_c(32 * w, w), classifier(32 * w),
    )  # fmt: skip
