"""Linear layers only: perceptrons, autoencoder, MLP-Mixer, a recommender."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(inputs: int = 20, widths: tuple[int, ...] = (64, 48, 32), classes: int = 10) -> nn.Module:
    """A multi-layer perceptron."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def mlp_autoencoder(inputs: int = 64, widths: tuple[int, ...] = (48, 32, 8)) -> nn.Module:
    """The anomaly detector of MLPerf Tiny: linear layers with batch norm down to a code and back."""
    layers: list[nn.Module] = []
    before = inputs
    for width in (*widths, *reversed(widths[:-1])):
        layers += [nn.Linear(before, width), nn.BatchNorm1d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, inputs))


class MixerBlock(nn.Module):
    """Token mixing behind a transposition, then channel mixing."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Mix both ways."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norm2(x))
        return out


class Mixer(nn.Module):
    """MLP-Mixer on 16 patches."""

    def __init__(self, width: int = 24, depth: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify 16-pixel images."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        out: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return out


class Recommender(nn.Module):
    """DLRM-like: embeddings of categories, a bottom MLP, pairwise products, a top MLP. Two inputs."""

    def __init__(self, categories: int = 3, entries: int = 20, width: int = 16, dense: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(entries, width) for _ in range(categories))
        self.bottom = nn.Sequential(nn.Linear(dense, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = (categories + 1) ** 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """Return a logit."""
        low = self.bottom(dense)
        vectors = torch.stack([low, *(table(indices[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        out: Tensor = self.top(torch.cat([low, products], 1))
        return out


class WideAndDeep(nn.Module):
    """Embeddings joined with numbers in front of an MLP, plus a linear path. Two inputs."""

    def __init__(self, categories: int = 3, entries: int = 20, width: int = 8, dense: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(entries, width) for _ in range(categories))
        self.deep = mlp(categories * width + dense, (32, 24), 1)
        self.wide = nn.Linear(dense, 1)

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """Return a probability."""
        joined = torch.cat([dense, *(table(indices[:, i]) for i, table in enumerate(self.tables))], 1)
        return torch.sigmoid(self.deep(joined) + self.wide(dense))
