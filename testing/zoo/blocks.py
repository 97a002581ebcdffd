"""Building blocks that several network families share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]


def conv_bn_layers(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, ...] = 3,
    stride: int = 1,
    groups: int = 1,
    act: Activation | None = nn.ReLU,
    dilation: int = 1,
) -> list[nn.Module]:
    """Convolution without bias, batch norm, activation; padded so that stride 1 keeps the size."""
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = tuple(dilation * (k // 2) for k in sizes)
    conv = nn.Conv2d(inputs, outputs, sizes, stride, padding, dilation, groups, bias=False)  # type: ignore[arg-type]
    return [conv, nn.BatchNorm2d(outputs), *([act()] if act else [])]


def conv_bn(
    inputs: int,
    outputs: int,
    kernel: int | tuple[int, ...] = 3,
    stride: int = 1,
    groups: int = 1,
    act: Activation | None = nn.ReLU,
    dilation: int = 1,
) -> nn.Sequential:
    """:func:`conv_bn_layers` as one module."""
    return nn.Sequential(*conv_bn_layers(inputs, outputs, kernel, stride, groups, act, dilation))


def classifier_layers(features: int, num_classes: int = 10) -> list[nn.Module]:
    """Global average pooling and one linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, num_classes)]


def classifier(features: int, num_classes: int = 10) -> nn.Sequential:
    """:func:`classifier_layers` as one module."""
    return nn.Sequential(*classifier_layers(features, num_classes))


class Residual(nn.Module):
    """``act(branch(x) + shortcut(x))``; no shortcut module means the identity.

    nn.Identity would leave Identity nodes that the published networks do not have.
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """Add branch and shortcut."""
        skip = x if self.shortcut is None else self.shortcut(x)
        out: Tensor = self.branch(x) + skip
        return out if self.act is None else self.act(out)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation with 1x1 convolutions, as in EfficientNet, MobileNetV3 and RegNetY."""

    def __init__(self, channels: int, squeeze: int, act: Activation = nn.ReLU, gate: Activation = nn.Sigmoid) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeeze, 1)
        self.act = act()
        self.expand = nn.Conv2d(squeeze, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        """Scale every channel by its gate."""
        gate: Tensor = self.gate(self.expand(self.act(self.reduce(self.pool(x)))))
        return x * gate


class LinearSqueezeExcite(nn.Module):
    """Squeeze-and-excitation with linear layers and views, as in the SE-ResNet reference code."""

    def __init__(self, channels: int, reduction: int = 4) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.gate = nn.Sequential(
            nn.Linear(channels, channels // reduction, bias=False),
            nn.ReLU(),
            nn.Linear(channels // reduction, channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scale every channel by its gate."""
        batch, channels = x.shape[:2]
        gate = self.gate(self.pool(x).view(batch, channels)).view(batch, channels, 1, 1)
        return x * gate.expand_as(x)


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x)


class Branches(nn.Module):
    """Parallel branches whose results are joined along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the branches."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def make_divisible(value: float, divisor: int = 4) -> int:
    """Round a width as the MobileNet code does."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded
