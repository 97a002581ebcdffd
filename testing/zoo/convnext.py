"""ConvNeXt and ConvMixer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from testing.zoo.blocks import Residual, classifier


class ChannelsFirstNorm(nn.Module):
    """LayerNorm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise behind a permutation, as torchvision does."""
        out: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return out


class ConvNextBlock(nn.Module):
    """Depthwise 7x7, LayerNorm, two linear layers, layer scale, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.project = nn.Linear(4 * width, width)
        self.layer_scale = nn.Parameter(0.5 + torch.rand(width, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        out = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        out = self.layer_scale * self.project(self.act(self.expand(out)))
        return x + out.permute(0, 3, 1, 2)


def convnext(width: int = 12, depths: tuple[int, ...] = (1, 1, 2, 1)) -> nn.Module:
    """ConvNeXt: patchified stem, four stages."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelsFirstNorm(width)]
    for stage, depth in enumerate(depths):
        if stage:
            layers += [ChannelsFirstNorm(width), nn.Conv2d(width, 2 * width, 2, 2)]
            width *= 2
        layers += [ConvNextBlock(width) for _ in range(depth)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, 10)]
    return nn.Sequential(*layers, *head)


def convmixer(width: int = 24, depth: int = 3) -> nn.Module:
    """ConvMixer: GELU and batch norm behind every convolution."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), nn.GELU(), nn.BatchNorm2d(width)]
    for _ in range(depth):
        spatial = [nn.Conv2d(width, width, 5, groups=width, padding="same"), nn.GELU(), nn.BatchNorm2d(width)]
        layers.append(Residual(nn.Sequential(*spatial)))
        layers += [nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers, classifier(width))
