"""Recurrent networks and text: CRNN, sequence taggers, TextCNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import conv_bn


class Crnn(nn.Module):
    """Text recognition: a convolutional stack whose columns are a sequence for two recurrent layers."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], width: int = 8, hidden: int = 12, classes: int = 11) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(1, width), nn.MaxPool2d(2), conv_bn(width, 2 * width), nn.MaxPool2d(2),
            conv_bn(2 * width, 4 * width), nn.MaxPool2d((2, 1)),
        )  # fmt: skip
        self.recurrent = cell(4 * width * 2, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits per column of (1, 16, 32) images."""
        features = self.features(x).permute(0, 3, 1, 2).flatten(2)
        out: Tensor = self.head(self.recurrent(features)[0])
        return out


class Tagger(nn.Module):
    """Embedding, one recurrent layer in one direction, a linear layer per token."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN], width: int = 12, hidden: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(30, width)
        self.recurrent = cell(width, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 24), nn.ReLU(), nn.Linear(24, 5))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tag every token."""
        out: Tensor = self.head(self.recurrent(self.table(tokens))[0])
        return out


class LstmClassifier(nn.Module):
    """Sensor signals: an LSTM whose last hidden state is classified."""

    def __init__(self, inputs: int = 6, hidden: int = 24, classes: int = 5) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 16), nn.ReLU(), nn.Linear(16, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Classify."""
        _, (hidden, _) = self.recurrent(x)
        out: Tensor = self.head(hidden[-1])
        return out


class TextCnn(nn.Module):
    """Convolutions of several lengths over embeddings, the maximum over time, joined."""

    def __init__(self, width: int = 16, filters: int = 12, classes: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(30, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, filters, k) for k in (3, 4, 5))
        self.head = nn.Linear(3 * filters, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Classify."""
        embedded = self.table(tokens).permute(0, 2, 1)
        pooled = [functional.relu(conv(embedded)).max(dim=2)[0] for conv in self.convs]
        out: Tensor = self.head(torch.cat(pooled, 1))
        return out
