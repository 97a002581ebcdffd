"""Networks with three spatial dimensions: C3D, R(2+1)D, a 3-D U-Net level, PointNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from testing.zoo.blocks import Residual


def c3d(width: int = 4, classes: int = 6) -> nn.Module:
    """C3D on (3, 8, 32, 32) clips."""
    layers: list[nn.Module] = []
    inputs = 3
    for factor, count, pool in ((1, 1, (1, 2, 2)), (2, 1, (2, 2, 2)), (4, 2, (2, 2, 2)), (8, 2, (2, 2, 2))):
        for _ in range(count):
            layers += [nn.Conv3d(inputs, factor * width, 3, padding=1), nn.ReLU()]
            inputs = factor * width
        layers.append(nn.MaxPool3d(pool))
    features = inputs * 2 * 2
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(features, 48), nn.ReLU(), nn.Dropout(),
        nn.Linear(48, 48), nn.ReLU(), nn.Dropout(), nn.Linear(48, classes),
    )  # fmt: skip


def r2plus1d(width: int = 8, classes: int = 6) -> nn.Module:
    """R(2+1)D: spatial then temporal convolutions with batch norm, residual."""

    def conv(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        middle = inputs * outputs * 27 // (inputs * 9 + outputs * 3)
        spatial = nn.Conv3d(inputs, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        temporal = nn.Conv3d(middle, outputs, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
        return [spatial, nn.BatchNorm3d(middle), nn.ReLU(), temporal, nn.BatchNorm3d(outputs)]

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        branch = nn.Sequential(*conv(inputs, outputs, stride), nn.ReLU(), *conv(outputs, outputs))
        shortcut = None
        if stride != 1:
            shortcut = nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))
        return Residual(branch, shortcut, nn.ReLU())

    stem = [*conv(3, width), nn.ReLU()]
    body = [block(width, width, 1), block(width, 2 * width, 2)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(2 * width, classes))


class PointNet(nn.Module):
    """PointNet with its input transform: the points are multiplied by a predicted 3x3 matrix."""

    def __init__(self, width: int = 16, classes: int = 6) -> None:
        super().__init__()

        def mlp(inputs: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for outputs in (width, 2 * width, 4 * width):
                layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
                inputs = outputs
            return nn.Sequential(*layers)

        def head(outputs: int) -> nn.Sequential:
            hidden = [nn.Linear(4 * width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU()]
            return nn.Sequential(*hidden, nn.Linear(2 * width, outputs))

        self.transform, self.matrix = mlp(3), head(9)
        self.features, self.head = mlp(3), head(classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify clouds (N, 3, points)."""
        matrix = self.matrix(self.transform(x).max(2)[0]).view(-1, 3, 3)
        moved = torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)
        out: Tensor = self.head(self.features(moved).max(2)[0])
        return out
