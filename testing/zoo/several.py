"""Networks with several inputs or outputs, and with weights that run more than once."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import conv_bn


def _trunk(inputs: int, width: int, features: int) -> nn.Sequential:
    convs = [conv_bn(inputs, width), nn.MaxPool2d(2), conv_bn(width, 2 * width), nn.MaxPool2d(2)]
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(2 * width * 16, features), nn.ReLU())


class Siamese(nn.Module):
    """One trunk over two images of 16 pixels, a linear layer on the difference of the embeddings."""

    def __init__(self, width: int = 8, features: int = 24) -> None:
        super().__init__()
        self.trunk = _trunk(1, width, features)
        self.head = nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the similarity."""
        return torch.sigmoid(self.head(torch.abs(self.trunk(a) - self.trunk(b))))


class Metric(nn.Module):
    """Normalised embeddings of two images, their cosine and the embeddings themselves as outputs."""

    def __init__(self, width: int = 8, features: int = 24) -> None:
        super().__init__()
        self.trunk = _trunk(1, width, features)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and the first embedding."""
        left, right = functional.normalize(self.trunk(a), dim=1), functional.normalize(self.trunk(b), dim=1)
        return (left * right).sum(1), left


class MultiHead(nn.Module):
    """Three tasks on one backbone: classes, a box, a map; one head also reads another's hidden layer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.trunk = nn.Sequential(conv_bn(3, width, 3, 2), conv_bn(width, 2 * width), conv_bn(2 * width, 2 * width))
        self.hidden = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 24), nn.ReLU())
        self.classes = nn.Linear(24, 5)
        self.box = nn.Sequential(nn.Linear(24 + 5, 16), nn.ReLU(), nn.Linear(16, 4))
        self.mask = nn.Sequential(conv_bn(2 * width, width), nn.ConvTranspose2d(width, 1, 2, 2), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return classes, box and mask."""
        features = self.trunk(x)
        hidden = self.hidden(features)
        scores = self.classes(hidden)
        return scores, self.box(torch.cat([hidden, scores], 1)), self.mask(features)


class TwoBranch(nn.Module):
    """Image and numbers, joined late."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.image = _trunk(3, width, 16)
        self.numbers = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        """Classify."""
        out: Tensor = self.head(torch.cat([self.image(image), self.numbers(numbers)], 1))
        return out


class Bilinear(nn.Module):
    """Two-stream fusion: elementwise maximum, product and sum of two branches (maxout, FiLM)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.a, self.b = conv_bn(3, width), conv_bn(3, width, 5)
        self.film = nn.Linear(4, 2 * width)
        self.head = nn.Sequential(conv_bn(width, width), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(width, 4))

    def forward(self, image: Tensor, condition: Tensor) -> Tensor:
        """Modulate the image features by a condition."""
        features = torch.maximum(self.a(image), self.b(image))
        scale, shift = self.film(condition)[:, :, None, None].chunk(2, 1)
        out: Tensor = self.head(features * (1 + scale) + shift)
        return out
