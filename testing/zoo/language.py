"""Language models as published code writes them: masks from lengths, rotary positions, shared keys, caches."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

#: Products over heads written out, torch's operator for attention, products over batch and heads on one axis.
Style = Literal["eager", "sdpa", "bmm"]
Kind = Literal["llama", "qwen2", "qwen3"]
Cache = tuple[Tensor, ...]


class RmsNorm(nn.Module):
    """Root mean square, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1.0 + 0.2 * torch.randn(width, generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def half_turned(x: Tensor) -> Tensor:
    """Return the second half, negated, in front of the first."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def repeated(x: Tensor, times: int) -> Tensor:
    """Repeat heads of keys or values, as published code does."""
    batch, heads, length, size = x.shape
    if times == 1:
        return x
    wide = x[:, :, None, :, :].expand(batch, heads, times, length, size)
    return wide.reshape(batch, heads * times, length, size)


def mixed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, style: Style) -> Tensor:
    """Attend; the result is (batch, length, heads, size)."""
    if style == "sdpa":
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).contiguous()
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
    scores = scores if mask is None else scores + mask
    return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(q.dtype), v).transpose(1, 2).contiguous()


class GroupedAttention(nn.Module):
    """Query heads that share keys and values, rotary positions, and a cache.

    Those of Qwen2 have a bias, those of Qwen3 a norm of every head of queries and keys.
    """

    def __init__(self, width: int, heads: int, shared: int, size: int, style: Style, kind: Kind) -> None:
        super().__init__()
        self.size, self.times, self.style = size, heads // shared, style
        biased = kind == "qwen2"
        self.q_proj = nn.Linear(width, heads * size, bias=biased)
        self.k_proj, self.v_proj = (nn.Linear(width, shared * size, bias=biased) for _ in range(2))
        self.o_proj = nn.Linear(heads * size, width, bias=False)
        self.q_norm, self.k_norm = (RmsNorm(size) if kind == "qwen3" else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, past: Cache) -> tuple[Tensor, Cache]:
        """Attend to what is in the cache, too, and return the new one."""
        shape = (*x.shape[:-1], -1, self.size)
        q, k, v = (layer(x).view(shape) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (y.transpose(1, 2) for y in (self.q_norm(q), self.k_norm(k), v))
        cosine, sine = (table.unsqueeze(1) for table in turn)
        q, k = (y * cosine + half_turned(y) * sine for y in (q, k))
        if past:
            k, v = torch.cat([past[0], k], -2), torch.cat([past[1], v], -2)
        out = mixed(q, repeated(k, self.times), repeated(v, self.times), mask, self.style)
        result: Tensor = self.o_proj(out.reshape(*x.shape[:-1], -1))
        return result, (k, v)


class LlamaBlock(nn.Module):
    """RMSNorm, attention, RMSNorm, gated layer."""

    def __init__(
        self, width: int, heads: int, shared: int, size: int, inner: int, style: Style, kind: Kind = "llama"
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.attention = GroupedAttention(width, heads, shared, size, style, kind)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, past: Cache) -> tuple[Tensor, Cache]:
        """Add both branches."""
        out, cache = self.attention(self.norm1(x), turn, mask, past)
        x = x + out
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), cache


class Llama(nn.Module):
    """Llama- or Qwen-type decoder; with a cache it takes and gives keys and values of every layer."""

    def __init__(
        self, style: Style = "eager", cached: bool = False, shared: int = 2, layers: int = 2, kind: Kind = "llama"
    ) -> None:
        super().__init__()
        heads, self.size, self.cached, width = 6, 8, cached, 32
        self.table = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, shared, 8, 64, style, kind) for _ in range(layers))
        self.norm, self.head = RmsNorm(width), nn.Linear(width, 50, bias=False)
        self.register_buffer("frequencies", 1.0 / 100.0 ** (torch.arange(0, 8, 2).float() / 8))

    def forward(self, tokens: Tensor, seen: Tensor, *past: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return logits for every position; `seen` tells padding from tokens, those of the cache included."""
        length, before = tokens.shape[1], past[0].shape[2] if self.cached else 0
        places = torch.arange(before, before + length, device=tokens.device)
        angles = places[None, :, None].float() * self.frequencies[None, None, :]
        angles = torch.cat((angles, angles), -1)
        later = torch.arange(before + length, device=tokens.device)[None, :] > places[:, None]
        hidden = later[None, None].expand(tokens.shape[0], 1, -1, -1) | (seen[:, None, None, :] == 0)
        mask = torch.where(hidden, torch.finfo(torch.float32).min, 0.0)
        x, caches = self.table(tokens), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, (angles.cos(), angles.sin()), mask, past[2 * i : 2 * i + 2])
            caches += cache
        logits: Tensor = self.head(self.norm(x))
        return (logits, *caches) if self.cached else logits


class BertLayer(nn.Module):
    """Attention and feed-forward layer, each with a norm behind it."""

    def __init__(self, width: int, heads: int, style: Style) -> None:
        super().__init__()
        self.heads, self.style = heads, style
        self.query, self.key, self.value, self.dense = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend."""
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        out = mixed(q, k, v, mask, self.style)
        x = self.norm1(x + self.dense(out.view(batch, length, width)))
        result: Tensor = self.norm2(x + self.down(functional.gelu(self.up(x))))
        return result


class Bert(nn.Module):
    """BERT-type encoder."""

    def __init__(self, style: Style = "eager") -> None:
        super().__init__()
        width = 32
        self.words, self.positions, self.types = (
            nn.Embedding(50, width),
            nn.Embedding(64, width),
            nn.Embedding(2, width),
        )
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, 4, style) for _ in range(2))
        self.register_buffer("places", torch.arange(64)[None])

    def forward(self, tokens: Tensor, seen: Tensor, kinds: Tensor) -> Tensor:
        """Return a vector for every position."""
        x = self.words(tokens) + self.types(kinds) + self.positions(self.places[:, : tokens.shape[1]])
        x = self.norm(x)
        wide = seen[:, None, None, :].expand(tokens.shape[0], 1, tokens.shape[1], seen.shape[1])
        mask = (1.0 - wide.to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x


class Gpt2Block(nn.Module):
    """One product for queries, keys and values, which is split."""

    def __init__(self, width: int, heads: int, style: Style) -> None:
        super().__init__()
        self.heads, self.style, self.width = heads, style, width
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.packed, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to what comes before."""
        shape = (*x.shape[:-1], self.heads, self.width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.packed(self.norm1(x)).split(self.width, 2))
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mask = torch.where(later, torch.finfo(torch.float32).min, 0.0)[None, None]
        x = x + self.project(mixed(q, k, v, mask, self.style).reshape(x.shape))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return result


class Gpt2(nn.Module):
    """GPT-2-type decoder with learned positions."""

    def __init__(self, style: Style = "eager") -> None:
        super().__init__()
        width = 32
        self.words, self.positions = nn.Embedding(50, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Gpt2Block(width, 4, style) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits for every position."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        out: Tensor = self.head(self.norm(self.blocks(self.words(tokens) + self.positions(places)[None])))
        return out
