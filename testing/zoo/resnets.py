"""Residual networks beyond ResNet-18 and -50."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import LinearSqueezeExcite, Residual, SqueezeExcite, classifier, conv_bn

Block = Callable[[int, int, int], nn.Module]


def _stages(block: Block, inputs: int, widths: tuple[int, ...], depths: tuple[int, ...]) -> nn.Sequential:
    """Stack blocks; every stage but the first begins with stride 2."""
    layers = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for index in range(depth):
            layers.append(block(inputs, width, 2 if stage and index == 0 else 1))
            inputs = width
    return nn.Sequential(*layers)


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    return conv_bn(inputs, outputs, 1, stride, act=None) if stride != 1 or inputs != outputs else None


def _network(stem: nn.Module, body: nn.Module, features: int, num_classes: int = 10) -> nn.Module:
    return nn.Sequential(stem, body, classifier(features, num_classes))


class OptionA(nn.Module):
    """The parameter-free shortcut of the CIFAR ResNets: every second pixel, zero channels on both sides."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.padding = outputs // 4

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad."""
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))


def resnet_option_a(width: int = 8, depth: int = 3) -> nn.Module:
    """ResNet-20 for CIFAR with option-A shortcuts."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        branch = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=None))
        return Residual(branch, OptionA(outputs) if stride != 1 else None, nn.ReLU())

    widths = (width, 2 * width, 4 * width)
    return _network(conv_bn(3, width), _stages(block, width, widths, (depth,) * 3), widths[-1])


class PreActBlock(nn.Module):
    """BN, ReLU, conv, twice; a projection reads the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        needed = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if needed else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        active = functional.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.shortcut(active)
        out = functional.relu(self.norm2(self.conv1(active)))
        if self.dropout is not None:
            out = self.dropout(out)
        summed: Tensor = self.conv2(out) + skip
        return summed


def preact_resnet(width: int = 8) -> nn.Module:
    """Pre-activation ResNet-18."""
    widths = (width, 2 * width, 4 * width, 8 * width)
    body = _stages(PreActBlock, width, widths, (2, 2, 2, 2))
    tail = nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU())
    return _network(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.Sequential(body, tail), widths[-1])


def wide_resnet(width: int = 4, widen: int = 4) -> nn.Module:
    """WRN-16-k: pre-activation blocks with dropout."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return PreActBlock(inputs, outputs, stride, dropout=0.3)

    widths = (width * widen, 2 * width * widen, 4 * width * widen)
    body = _stages(block, width, widths, (2, 2, 2))
    tail = nn.Sequential(nn.BatchNorm2d(widths[-1]), nn.ReLU())
    return _network(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.Sequential(body, tail), widths[-1])


def _bottleneck(inner: nn.Module, inputs: int, outputs: int, stride: int) -> nn.Module:
    return Residual(inner, _projection(inputs, outputs, stride), nn.ReLU())


def resnext(width: int = 16, cardinality: int = 4) -> nn.Module:
    """ResNeXt: bottlenecks with grouped 3x3 convolutions."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        inner = outputs // 2
        branch = nn.Sequential(
            conv_bn(inputs, inner, 1),
            conv_bn(inner, inner, 3, stride, groups=cardinality),
            conv_bn(inner, outputs, 1, act=None),
        )
        return _bottleneck(branch, inputs, outputs, stride)

    widths = (2 * width, 4 * width, 8 * width)
    return _network(conv_bn(3, width), _stages(block, width, widths, (2, 2, 2)), widths[-1])


def se_resnet(width: int = 8) -> nn.Module:
    """SE-ResNet-18, gates made of linear layers."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        branch = nn.Sequential(
            conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=None), LinearSqueezeExcite(outputs)
        )
        return Residual(branch, _projection(inputs, outputs, stride), nn.ReLU())

    widths = (width, 2 * width, 4 * width, 8 * width)
    return _network(conv_bn(3, width), _stages(block, width, widths, (2, 2, 2, 2)), widths[-1])


def regnet(se: bool, group_width: int = 8) -> nn.Module:
    """RegNetX, or with `se` RegNetY: bottlenecks of ratio 1, groups of equal width."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        middle: list[nn.Module] = [SqueezeExcite(outputs, max(2, inputs // 4))] if se else []
        branch = nn.Sequential(
            conv_bn(inputs, outputs, 1),
            conv_bn(outputs, outputs, 3, stride, groups=outputs // group_width),
            *middle,
            conv_bn(outputs, outputs, 1, act=None),
        )
        return _bottleneck(branch, inputs, outputs, stride)

    widths = (16, 32, 64, 96)
    return _network(conv_bn(3, 16, 3, 2), _stages(block, 16, widths, (1, 2, 3, 1)), widths[-1])


def groupnorm_resnet(width: int = 16, groups: int = 4) -> nn.Module:
    """ResNet with GroupNorm in place of batch norm."""

    def conv_gn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return [conv, nn.GroupNorm(groups, outputs)]

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        branch = nn.Sequential(*conv_gn(inputs, outputs, 3, stride), nn.ReLU(), *conv_gn(outputs, outputs, 3))
        needed = stride != 1 or inputs != outputs
        shortcut = nn.Sequential(*conv_gn(inputs, outputs, 1, stride)) if needed else None
        return Residual(branch, shortcut, nn.ReLU())

    widths = (width, 2 * width, 4 * width)
    stem = nn.Sequential(*conv_gn(3, width, 3), nn.ReLU())
    return _network(stem, _stages(block, width, widths, (2, 2, 2)), widths[-1])


class Res2Block(nn.Module):
    """Res2Net's middle: slices of the channels, each convolved with the sum of its own and the one before."""

    def __init__(self, width: int, scale: int) -> None:
        super().__init__()
        self.part = width // scale
        self.convs = nn.ModuleList(conv_bn(self.part, self.part) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        """Go through the slices."""
        parts = torch.split(x, self.part, 1)
        results = []
        last: Tensor | None = None
        for part, conv in zip(parts, self.convs, strict=False):
            last = conv(part if last is None else last + part)
            results.append(last)
        return torch.cat([*results, parts[-1]], 1)


def res2net(width: int = 16, scale: int = 4) -> nn.Module:
    """Res2Net bottlenecks."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        inner = outputs // 2
        branch = nn.Sequential(
            conv_bn(inputs, inner, 1, stride), Res2Block(inner, scale), conv_bn(inner, outputs, 1, act=None)
        )
        return _bottleneck(branch, inputs, outputs, stride)

    widths = (2 * width, 4 * width)
    return _network(conv_bn(3, width), _stages(block, width, widths, (2, 2)), widths[-1])


class Cbam(nn.Module):
    """Channel attention from mean and maximum, then spatial attention from mean and maximum over the channels."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Conv2d(channels, channels // reduction, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels // reduction, channels, 1, bias=False),
        )
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both gates."""
        mean, peak = functional.adaptive_avg_pool2d(x, 1), functional.adaptive_max_pool2d(x, 1)
        x = x * torch.sigmoid(self.mlp(mean) + self.mlp(peak))
        over = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.spatial(over))


def cbam_resnet(width: int = 16) -> nn.Module:
    """ResNet with CBAM in every block: the mean over the channels is a barrier."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        branch = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=None), Cbam(outputs))
        return Residual(branch, _projection(inputs, outputs, stride), nn.ReLU())

    return _network(conv_bn(3, width), _stages(block, width, (width, 2 * width), (2, 2)), 2 * width)


class Eca(nn.Module):
    """Efficient channel attention: a 1-D convolution along the channels."""

    def __init__(self, kernel: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, kernel, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scale every channel by a gate that its neighbours take part in."""
        pooled = functional.adaptive_avg_pool2d(x, 1).squeeze(-1)
        gate = self.conv(pooled.transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return x * torch.sigmoid(gate).expand_as(x)


def eca_resnet(width: int = 16) -> nn.Module:
    """ResNet with ECA gates: a convolution along the channels is a barrier."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        branch = nn.Sequential(conv_bn(inputs, outputs, 3, stride), conv_bn(outputs, outputs, act=None), Eca())
        return Residual(branch, _projection(inputs, outputs, stride), nn.ReLU())

    return _network(conv_bn(3, width), _stages(block, width, (width, 2 * width), (2, 2)), 2 * width)


class RepVggBlock(nn.Module):
    """The training form: 3x3, 1x1 and identity, each with batch norm, added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.dense = conv_bn(inputs, outputs, 3, stride, act=None)
        self.point = conv_bn(inputs, outputs, 1, stride, act=None)
        self.norm = nn.BatchNorm2d(inputs) if inputs == outputs and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the branches."""
        out = self.dense(x) + self.point(x)
        return functional.relu(out if self.norm is None else out + self.norm(x))


def repvgg(width: int = 8) -> nn.Module:
    """RepVGG before its branches are merged."""
    widths = (width, 2 * width, 4 * width, 8 * width)
    return _network(RepVggBlock(3, width, 1), _stages(RepVggBlock, width, widths, (1, 2, 2, 1)), widths[-1])
