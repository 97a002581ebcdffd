"""Networks for small devices: MobileNet, EfficientNet, MNASNet, ShuffleNet, GhostNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from testing.zoo.blocks import (
    Activation,
    Branches,
    Residual,
    SqueezeExcite,
    classifier,
    conv_bn,
    make_divisible,
)


def mobilenet_v1(width: int = 8) -> nn.Module:
    """MobileNetV1: depthwise and pointwise convolutions in turn."""
    layers: list[nn.Module] = [conv_bn(3, width, 3, 2)]
    inputs = width
    for factor, stride in ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (16, 1), (32, 2), (32, 1)):
        layers += [conv_bn(inputs, inputs, 3, stride, groups=inputs), conv_bn(inputs, factor * width, 1)]
        inputs = factor * width
    return nn.Sequential(*layers, classifier(inputs))


def inverted_residual(
    inputs: int, hidden: int, outputs: int, kernel: int, stride: int, act: Activation, se: nn.Module | None = None
) -> nn.Module:
    """Expand, depthwise, gate, project; added to the input where that fits."""
    layers: list[nn.Module] = [conv_bn(inputs, hidden, 1, act=act)] if hidden != inputs else []
    layers.append(conv_bn(hidden, hidden, kernel, stride, groups=hidden, act=act))
    if se is not None:
        layers.append(se)
    layers.append(conv_bn(hidden, outputs, 1, act=None))
    branch = nn.Sequential(*layers)
    return Residual(branch) if stride == 1 and inputs == outputs else branch


def mobilenet_v3_small(scale: float = 0.5) -> nn.Module:
    """MobileNetV3-Small: squeeze-excite with hard sigmoid, hard swish."""
    settings = (
        (3, 16, 16, True, nn.ReLU, 2), (3, 72, 24, False, nn.ReLU, 2), (3, 88, 24, False, nn.ReLU, 1),
        (5, 96, 40, True, nn.Hardswish, 2), (5, 240, 40, True, nn.Hardswish, 1), (5, 120, 48, True, nn.Hardswish, 1),
        (5, 288, 96, True, nn.Hardswish, 2), (5, 576, 96, True, nn.Hardswish, 1),
    )  # fmt: skip
    inputs = make_divisible(16 * scale)
    layers: list[nn.Module] = [conv_bn(3, inputs, 3, 2, act=nn.Hardswish)]
    for kernel, expand, channels, gated, act, stride in settings:
        hidden, outputs = make_divisible(expand * scale), make_divisible(channels * scale)
        se = SqueezeExcite(hidden, make_divisible(hidden / 4), gate=nn.Hardsigmoid) if gated else None
        layers.append(inverted_residual(inputs, hidden, outputs, kernel, stride, act, se))
        inputs = outputs
    last = make_divisible(576 * scale)
    head = [nn.Linear(last, 2 * last), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(2 * last, 10)]
    layers += [conv_bn(inputs, last, 1, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head]
    return nn.Sequential(*layers)


_EFFICIENTNET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 2, 2, 3), (6, 112, 2, 1, 5), (6, 192, 2, 2, 5),
    (6, 320, 1, 1, 3),
)  # fmt: skip


def efficientnet(lite: bool, scale: float = 0.25) -> nn.Module:
    """EfficientNet-B0's stages, two blocks deep at most; `lite` has no gates and ReLU6."""
    act: Activation = nn.ReLU6 if lite else nn.SiLU
    inputs = make_divisible(32 * scale)
    layers: list[nn.Module] = [conv_bn(3, inputs, 3, 2, act=act)]
    for expand, channels, repeats, first, kernel in _EFFICIENTNET:
        outputs = make_divisible(channels * scale)
        for index in range(repeats):
            hidden = inputs * expand
            se = None if lite else SqueezeExcite(hidden, max(1, inputs // 4), act=nn.SiLU)
            stride = first if index == 0 else 1
            layers.append(inverted_residual(inputs, hidden, outputs, kernel, stride, act, se))
            inputs = outputs
    last = make_divisible(1280 * scale)
    layers += [conv_bn(inputs, last, 1, act=act), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(last, 10))


def mnasnet(scale: float = 0.25) -> nn.Module:
    """MNASNet-B1: a separable stem and inverted residuals of several kernels."""
    inputs = make_divisible(32 * scale)
    outputs = make_divisible(16 * scale)
    layers: list[nn.Module] = [
        conv_bn(3, inputs, 3, 2), conv_bn(inputs, inputs, groups=inputs), conv_bn(inputs, outputs, 1, act=None),
    ]  # fmt: skip
    inputs = outputs
    settings = ((3, 24, 2, 2, 3), (3, 40, 2, 2, 5), (6, 80, 2, 2, 5), (6, 96, 2, 1, 3), (6, 192, 2, 2, 5))
    for expand, channels, repeats, first, kernel in (*settings, (6, 320, 1, 1, 3)):
        outputs = make_divisible(channels * scale)
        for index in range(repeats):
            stride = first if index == 0 else 1
            layers.append(inverted_residual(inputs, inputs * expand, outputs, kernel, stride, nn.ReLU))
            inputs = outputs
    last = make_divisible(1280 * scale)
    return nn.Sequential(*layers, conv_bn(inputs, last, 1), classifier(last))


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Channel shuffle, as written in the reference code."""
    batch, channels, height, width = x.shape
    x = x.view(batch, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batch, channels, height, width)


class ShuffleUnitV1(nn.Module):
    """Grouped 1x1, shuffle, depthwise, grouped 1x1; with stride the average-pooled input is joined, else added."""

    def __init__(self, inputs: int, outputs: int, groups: int, stride: int, first: bool) -> None:
        super().__init__()
        self.groups, self.stride = groups, stride
        inner = outputs // 4
        new = outputs - inputs if stride == 2 else outputs
        self.reduce = conv_bn(inputs, inner, 1, groups=1 if first else groups)
        self.depthwise = conv_bn(inner, inner, 3, stride, groups=inner, act=None)
        self.expand = conv_bn(inner, new, 1, groups=groups, act=None)
        self.pool = nn.AvgPool2d(3, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Run the unit."""
        out = self.expand(self.depthwise(shuffle(self.reduce(x), self.groups)))
        joined = torch.cat([self.pool(x), out], 1) if self.stride == 2 else x + out
        return torch.relu(joined)


def shufflenet_v1(width: int = 24, groups: int = 3) -> nn.Module:
    """ShuffleNetV1 with three groups; every stage is preceded by a stem of 12 channels."""
    layers: list[nn.Module] = [conv_bn(3, 12, 3, 2), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 12
    for stage, depth in enumerate((2, 3, 2)):
        outputs = width * 2 ** (stage + 1)
        for index in range(depth):
            layers.append(ShuffleUnitV1(inputs, outputs, groups, 1 if index else 2, stage == index == 0))
            inputs = outputs
    return nn.Sequential(*layers, classifier(inputs))


class ShuffleUnitV2(nn.Module):
    """Half of the channels pass by; joined and shuffled afterwards."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = outputs // 2
        first = inputs if stride == 2 else half
        self.branch = nn.Sequential(
            conv_bn(first, half, 1), conv_bn(half, half, 3, stride, groups=half, act=None), conv_bn(half, half, 1)
        )
        self.side = nn.Sequential(conv_bn(inputs, inputs, 3, 2, groups=inputs, act=None), conv_bn(inputs, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Run the unit."""
        if self.stride == 1:
            kept, rest = x.chunk(2, dim=1)
            out = torch.cat((kept, self.branch(rest)), dim=1)
        else:
            out = torch.cat((self.side(x), self.branch(x)), dim=1)
        return shuffle(out, 2)


def shufflenet_v2(width: int = 24) -> nn.Module:
    """ShuffleNetV2."""
    layers: list[nn.Module] = [conv_bn(3, 12, 3, 2), nn.MaxPool2d(3, 2, padding=1)]
    inputs = 12
    for stage, depth in enumerate((2, 3, 2)):
        outputs = width * 2**stage
        for index in range(depth):
            layers.append(ShuffleUnitV2(inputs, outputs, 1 if index else 2))
            inputs = outputs
    return nn.Sequential(*layers, conv_bn(inputs, 4 * width, 1), classifier(4 * width))


class GhostModule(nn.Module):
    """Few primary features, and cheap depthwise copies of them; what is too many is cut off."""

    def __init__(self, inputs: int, outputs: int, act: Activation | None = nn.ReLU) -> None:
        super().__init__()
        primary = (outputs + 1) // 2
        self.outputs = outputs
        self.primary = conv_bn(inputs, primary, 1, act=act)
        self.cheap = conv_bn(primary, primary, 3, groups=primary, act=act)

    def forward(self, x: Tensor) -> Tensor:
        """Join primary and cheap features."""
        primary = self.primary(x)
        return torch.cat([primary, self.cheap(primary)], 1)[:, : self.outputs]


def ghostnet(width: int = 8) -> nn.Module:
    """GhostNet bottlenecks, one with an odd width."""
    layers: list[nn.Module] = [conv_bn(3, width, 3, 2)]
    inputs = width
    for hidden, outputs, stride in ((2, 1, 1), (3, 2, 2), (5, 2, 1), (6, 4, 2), (9, 4, 1)):
        inner, wide = hidden * width + 1, outputs * width
        middle = [conv_bn(inner, inner, 3, 2, groups=inner, act=None)] if stride == 2 else []
        branch = nn.Sequential(GhostModule(inputs, inner), *middle, GhostModule(inner, wide, act=None))
        shortcut = None
        if stride == 2 or inputs != wide:
            depthwise = conv_bn(inputs, inputs, 3, stride, groups=inputs, act=None)
            shortcut = nn.Sequential(depthwise, conv_bn(inputs, wide, 1, act=None))
        layers.append(Residual(branch, shortcut))
        inputs = wide
    return nn.Sequential(*layers, classifier(inputs))


def xception(width: int = 8) -> nn.Module:
    """Xception: separable convolutions behind ReLUs, projected shortcuts."""
    layers: list[nn.Module] = [conv_bn(3, width, 3, 2), conv_bn(width, 2 * width)]
    inputs = 2 * width
    for outputs, stride in ((4 * width, 2), (8 * width, 2), (8 * width, 1)):
        branch: list[nn.Module] = []
        wide = inputs
        for _ in range(2):
            conv = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False)
            branch += [nn.ReLU(), conv, conv_bn(wide, outputs, 1, act=None)]
            wide = outputs
        if stride == 2:
            branch.append(nn.MaxPool2d(3, 2, padding=1))
        shortcut = conv_bn(inputs, outputs, 1, stride, act=None) if stride == 2 or inputs != outputs else None
        layers.append(Residual(nn.Sequential(*branch), shortcut))
        inputs = outputs
    return nn.Sequential(*layers, nn.ReLU(), classifier(inputs))


def mixnet(width: int = 12) -> nn.Module:
    """MixNet: depthwise convolutions of several kernels on parts of the channels."""

    def mixed(channels: int) -> nn.Module:
        part = channels // 3
        convs = [nn.Conv2d(part, part, k, padding=k // 2, groups=part, bias=False) for k in (3, 5, 7)]
        return _MixConv(nn.ModuleList(convs), part)

    def block(inputs: int) -> nn.Module:
        hidden = 3 * inputs
        branch = [conv_bn(inputs, hidden, 1), mixed(hidden), nn.BatchNorm2d(hidden), nn.ReLU()]
        return Residual(nn.Sequential(*branch, conv_bn(hidden, inputs, 1, act=None)))

    return nn.Sequential(
        conv_bn(3, width, 3, 2), block(width), block(width), conv_bn(width, 2 * width, 1), nn.MaxPool2d(2),
        block(2 * width), Branches(nn.AvgPool2d(2), nn.MaxPool2d(2)), classifier(4 * width),
    )  # fmt: skip


class _MixConv(nn.Module):
    def __init__(self, convs: nn.ModuleList, part: int) -> None:
        super().__init__()
        self.convs = convs
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.part, 1)
        return torch.cat([conv(p) for conv, p in zip(self.convs, parts, strict=True)], 1)
