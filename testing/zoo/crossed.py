"""Encoders and decoders that look at them, as published code writes them: T5 and Whisper."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.language import RmsNorm, Style, mixed

_LEAST = torch.finfo(torch.float32).min


def split_heads(x: Tensor, size: int) -> Tensor:
    """Return (batch, heads, length, size) of (batch, length, heads * size)."""
    return x.view(x.shape[0], -1, x.shape[2] // size, size).transpose(1, 2)


def later(length: int) -> Tensor:
    """Return what keeps every position from those behind it, of shape (1, 1, length, length)."""
    return torch.where(torch.ones(length, length, dtype=torch.bool).triu(1), _LEAST, 0.0)[None, None]


def batched(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attend with batch and heads on one axis, as BART, OPT, CLIP and Whisper were written for years."""
    batch, heads, length, size = q.shape
    q, k, v = (y.contiguous().view(batch * heads, -1, size) for y in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2))
    if mask is not None:
        scores = (scores.view(batch, heads, length, -1) + mask).view(batch * heads, length, -1)
    return torch.bmm(scores.softmax(-1), v).view(batch, heads, length, size)


class CrossedAttention(nn.Module):
    """Queries of one sequence, keys and values of the same one or of another one."""

    def __init__(self, width: int, inner: int, size: int, style: Style, *, plain: bool = False) -> None:
        super().__init__()
        self.size, self.style, self.plain = size, style, plain
        self.q, self.v = (nn.Linear(width, inner, bias=not plain) for _ in range(2))
        self.k = nn.Linear(width, inner, bias=False)
        self.o = nn.Linear(inner, width, bias=not plain)

    def forward(self, x: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
        """Attend; T5 (`plain`) has no scale, and Whisper scales its queries."""
        q, k, v = (split_heads(y, self.size) for y in (self.q(x), self.k(other), self.v(other)))
        if self.style == "sdpa":
            scale = 1.0 if self.plain else self.size**-0.5
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
            out = out.transpose(1, 2).contiguous()
        elif self.style == "bmm":
            q = q if self.plain else q * self.size**-0.5
            out = batched(q, k, v, mask).transpose(1, 2).contiguous()
        else:
            q = q * self.size**0.5 if self.plain else q  # `mixed` scales
            out = mixed(q, k, v, mask, self.style)
        result: Tensor = self.o(out.view(x.shape[0], -1, out.shape[2] * self.size))
        return result


class RelativePositions(nn.Module):
    """A number per head and bucket of distances, near ones alone and far ones together."""

    def __init__(self, heads: int, buckets: int, *, both: bool) -> None:
        super().__init__()
        self.table, self.buckets, self.both = nn.Embedding(buckets, heads), buckets, both

    def forward(self, queries: int, keys: int) -> Tensor:
        """Return what is added to scores, of shape (1, heads, queries, keys)."""
        distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        buckets, number = self.buckets, torch.zeros_like(distance)
        if self.both:
            buckets //= 2
            number = number + (distance > 0).to(torch.long) * buckets
            distance = distance.abs()
        else:
            distance = -torch.min(distance, torch.zeros_like(distance))
        exact = buckets // 2
        far = exact + (torch.log(distance.float() / exact) / math.log(32 / exact) * (buckets - exact)).to(torch.long)
        far = torch.min(far, torch.full_like(far, buckets - 1))
        number = number + torch.where(distance < exact, distance, far)
        result: Tensor = self.table(number).permute(2, 0, 1).unsqueeze(0)
        return result


class T5Block(nn.Module):
    """Attention, attention to the encoder in a decoder, and a gated layer."""

    def __init__(self, width: int, style: Style, *, crossed: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(3))
        self.own = CrossedAttention(width, 48, 8, style, plain=True)
        self.crossed = CrossedAttention(width, 48, 8, style, plain=True) if crossed else None
        self.gate, self.up = (nn.Linear(width, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor, read: Tensor | None, seen: Tensor | None) -> Tensor:
        """Add all branches."""
        y = self.norms[0](x)
        x = x + self.own(y, y, mask)
        if self.crossed is not None and read is not None:
            x = x + self.crossed(self.norms[1](x), read, seen)
        y = self.norms[2](x)
        result: Tensor = x + self.down(functional.gelu(self.gate(y), approximate="tanh") * self.up(y))
        return result


class T5(nn.Module):
    """T5-type network: both stacks share words; in a stack all layers share positions."""

    def __init__(self, style: Style = "eager") -> None:
        super().__init__()
        width = 32
        self.words = nn.Embedding(50, width)
        self.positions = RelativePositions(6, 16, both=True)
        self.own_positions = RelativePositions(6, 16, both=False)
        self.encoder = nn.ModuleList(T5Block(width, style, crossed=False) for _ in range(2))
        self.decoder = nn.ModuleList(T5Block(width, style, crossed=True) for _ in range(2))
        self.norm, self.own_norm = RmsNorm(width), RmsNorm(width)
        self.head = nn.Linear(width, 50, bias=False)

    def forward(self, tokens: Tensor, seen: Tensor, written: Tensor) -> Tensor:
        """Return logits for every position of what is written."""
        mask = (1.0 - seen[:, None, None, :].float()) * _LEAST
        x, length = self.words(tokens), tokens.shape[1]
        bias = self.positions(length, length) + mask
        for block in self.encoder:
            x = block(x, bias, None, None)
        x, y, length = self.norm(x), self.words(written), written.shape[1]
        own = self.own_positions(length, length) + later(length)
        for block in self.decoder:
            y = block(y, own, x, mask)
        logits: Tensor = self.head(self.own_norm(y) * 32**-0.5)
        return logits


class WhisperBlock(nn.Module):
    """The same with LayerNorm, biases but for keys, and a plain feed-forward layer."""

    def __init__(self, width: int, style: Style, *, crossed: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = CrossedAttention(width, width, 8, style)
        self.crossed = CrossedAttention(width, width, 8, style) if crossed else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None, read: Tensor | None) -> Tensor:
        """Add all branches."""
        y = self.norms[0](x)
        x = x + self.own(y, y, mask)
        if self.crossed is not None and read is not None:
            x = x + self.crossed(self.norms[1](x), read, None)
        result: Tensor = x + self.down(functional.gelu(self.up(self.norms[2](x))))
        return result


class Whisper(nn.Module):
    """Whisper-type network: convolutions in front of an encoder, and a decoder whose head is its table of words."""

    def __init__(self, style: Style = "eager", bands: int = 8, steps: int = 24) -> None:
        super().__init__()
        width = 32
        self.conv1, self.conv2 = nn.Conv1d(bands, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, padding=1)
        angles = torch.arange(steps // 2)[:, None] / 100.0 ** (torch.arange(width // 2) / (width // 2))
        self.register_buffer("waves", torch.cat([angles.sin(), angles.cos()], 1))
        self.words, self.positions = nn.Embedding(50, width), nn.Embedding(40, width)
        self.encoder = nn.ModuleList(WhisperBlock(width, style, crossed=False) for _ in range(2))
        self.decoder = nn.ModuleList(WhisperBlock(width, style, crossed=True) for _ in range(2))
        self.norm, self.own_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, sound: Tensor, written: Tensor) -> Tensor:
        """Return logits for every position of what is written."""
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(sound)))).permute(0, 2, 1) + self.waves
        for block in self.encoder:
            x = block(x, None, None)
        x, length = self.norm(x), written.shape[1]
        y = self.words(written) + self.positions(torch.arange(length))
        for block in self.decoder:
            y = block(y, later(length), x)
        logits: Tensor = self.own_norm(y) @ self.words.weight.T
        return logits
