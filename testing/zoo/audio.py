"""Sound and other signals in one dimension: M5, DS-CNN, TCN, TC-ResNet, WaveNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import Residual, conv_bn


def m5(width: int = 8, classes: int = 12) -> nn.Module:
    """M5 on raw waveforms."""
    layers: list[nn.Module] = [nn.Conv1d(1, width, 80, 4), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(4)]
    inputs = width
    for factor in (1, 2, 4):
        layers += [nn.Conv1d(inputs, factor * width, 3), nn.BatchNorm1d(factor * width), nn.ReLU(), nn.MaxPool1d(2)]
        inputs = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(inputs, classes))


class M5Original(nn.Module):
    """M5 as in the PyTorch tutorial: the head works on (N, 1, C) behind a permutation."""

    def __init__(self, width: int = 8, classes: int = 12) -> None:
        super().__init__()
        self.features = m5(width)[:-3]  # type: ignore[index]
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return log probabilities (N, 1, classes)."""
        x = self.features(x)
        x = functional.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        return functional.log_softmax(self.head(x), dim=2)


def ds_cnn(width: int = 16, classes: int = 12) -> nn.Module:
    """DS-CNN for keyword spotting on (1, 49, 10) spectra."""
    stem = nn.Conv2d(1, width, (10, 4), (2, 2), padding=(5, 1), bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.2)]
    for _ in range(4):
        layers += [conv_bn(width, width, groups=width), conv_bn(width, width, 1)]
    return nn.Sequential(*layers, nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(width, classes))


class Chomp(nn.Module):
    """Cut what padding added at the end."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Cut."""
        return x[:, :, : -self.size].contiguous()


class TcnBlock(nn.Module):
    """Two dilated causal convolutions with weight norm, a 1x1 shortcut where the width changes."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        pad = (kernel - 1) * dilation
        layers: list[nn.Module] = []
        width = inputs
        for _ in range(2):
            conv = nn.Conv1d(width, outputs, kernel, padding=pad, dilation=dilation)
            layers += [nn.utils.parametrizations.weight_norm(conv), Chomp(pad), nn.ReLU(), nn.Dropout(0.2)]
            width = outputs
        self.body = nn.Sequential(*layers)
        self.shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        return functional.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


class Tcn(nn.Module):
    """Temporal convolutional network; the last time step is classified."""

    def __init__(self, inputs: int = 4, widths: tuple[int, ...] = (12, 12, 16), classes: int = 6) -> None:
        super().__init__()
        pairs = zip([inputs, *widths], widths, strict=False)
        self.body = nn.Sequential(*(TcnBlock(a, b, 3, 2**i) for i, (a, b) in enumerate(pairs)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        out: Tensor = self.head(self.body(x)[:, :, -1])
        return out


class CausalConv(nn.Module):
    """A dilated convolution behind padding at the left only."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.pad = (kernel - 1) * dilation
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        out: Tensor = self.conv(functional.pad(x, (self.pad, 0)))
        return out


class WaveNet(nn.Module):
    """WaveNet: gates from two halves of the channels, residual and skip paths."""

    def __init__(self, width: int = 12, skip: int = 16, depth: int = 4, classes: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.convs = nn.ModuleList(CausalConv(width, 2 * width, 2, 2**i) for i in range(depth))
        self.residual = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.skip = nn.ModuleList(nn.Conv1d(width, skip, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits for every time step."""
        x = self.stem(x)
        total: Tensor | None = None
        for conv, residual, skip in zip(self.convs, self.residual, self.skip, strict=True):
            signal, gate = conv(x).chunk(2, 1)
            z = torch.tanh(signal) * torch.sigmoid(gate)
            total = skip(z) if total is None else total + skip(z)
            x = x + residual(z)
        out: Tensor = self.head(total)
        return out


def gated_cnn(width: int = 12, depth: int = 3, classes: int = 6) -> nn.Module:
    """Convolutions with gated linear units (nn.GLU)."""
    layers: list[nn.Module] = []
    inputs = 4
    for _ in range(depth):
        layers += [nn.Conv1d(inputs, 2 * width, 5, padding=2), nn.GLU(1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, classes))


def tc_resnet(width: int = 8, classes: int = 12) -> nn.Module:
    """TC-ResNet8: frequencies are channels, convolutions run along time."""

    def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, act: bool = True) -> list[nn.Module]:
        layers = [nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm1d(outputs)]
        return [*layers, *([nn.ReLU()] if act else [])]

    layers: list[nn.Module] = conv(40, 2 * width, 3)
    inputs = 2 * width
    for factor in (3, 4, 6):
        outputs = factor * width
        branch = nn.Sequential(*conv(inputs, outputs, 9, 2), *conv(outputs, outputs, 9, act=False))
        layers.append(Residual(branch, nn.Sequential(*conv(inputs, outputs, 1, 2)), nn.ReLU()))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Dropout(), nn.Conv1d(inputs, classes, 1), nn.Flatten())
