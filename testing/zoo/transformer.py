"""Transformers: products of activations are barriers; the feed-forward layers fold."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.blocks import conv_bn


class Attention(nn.Module):
    """Self-attention written out as in ViT reference code."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        out: Tensor = self.project((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return out


class SdpaAttention(nn.Module):
    """Separate projections and torch's scaled_dot_product_attention."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        batch, tokens, width = x.shape
        q, k, v = (
            layer(x).view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.project(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Block(nn.Module):
    """Pre-norm block."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class TinyViT(nn.Module):
    """ViT with a class token and learned positions, on 16 patches."""

    def __init__(self, width: int = 24, depth: int = 2, heads: int = 3, classes: int = 10) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width, generator=generator))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 17, width, generator=generator))
        self.blocks = nn.Sequential(*(Block(Attention(width, heads), width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify 16-pixel images."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1) + self.positions
        out: Tensor = self.head(self.norm(self.blocks(tokens))[:, 0])
        return out


class ConvStemViT(nn.Module):
    """A convolutional stem in front of a transformer with torch's attention operator."""

    def __init__(self, width: int = 24, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 12, 3, 2), conv_bn(12, 24, 3, 2), nn.Conv2d(24, width, 1))
        self.blocks = nn.Sequential(*(Block(SdpaAttention(width, 3), width) for _ in range(2)))
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Classify 16-pixel images."""
        tokens = self.stem(x).flatten(2).permute(0, 2, 1)
        out: Tensor = self.head(self.blocks(tokens).mean(1))
        return out


class TextEncoder(nn.Module):
    """Embeddings and torch's own nn.TransformerEncoder."""

    def __init__(self, width: int = 24, classes: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(30, width)
        layer = nn.TransformerEncoderLayer(width, 3, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Classify."""
        out: Tensor = self.head(self.encoder(self.table(tokens)).mean(1))
        return out


class TinyGpt(nn.Module):
    """Causal language model whose head shares the embedding's weights."""

    def __init__(self, width: int = 24, vocabulary: int = 30, length: int = 12) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.1 * torch.randn(length, width, generator=torch.Generator().manual_seed(4)))
        self.blocks = nn.Sequential(*(Block(SdpaAttention(width, 3, causal=True), width) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits for every position."""
        out: Tensor = self.head(self.norm(self.blocks(self.table(tokens) + self.positions)))
        return out
