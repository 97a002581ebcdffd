"""Transformers of images as published code writes them: ViT, Swin, and CLIP with its tower of text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from testing.zoo.crossed import later, split_heads
from testing.zoo.language import Style, mixed


def quick_gelu(x: Tensor) -> Tensor:
    """CLIP's activation."""
    return x * torch.sigmoid(1.702 * x)


class EncoderLayer(nn.Module):
    """Norms in front, separate projections."""

    def __init__(self, width: int, heads: int, style: Style, *, quick: bool = False) -> None:
        super().__init__()
        self.size, self.style, self.quick = width // heads, style, quick
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Add both branches."""
        y = self.norm1(x)
        q, k, v = (split_heads(layer(y), self.size) for layer in (self.q, self.k, self.v))
        x = x + self.o(mixed(q, k, v, mask, self.style).reshape(*x.shape))
        y = self.up(self.norm2(x))
        result: Tensor = x + self.down(quick_gelu(y) if self.quick else functional.gelu(y))
        return result


class VisionTower(nn.Module):
    """Patches with a class token and learned positions; returns the class token's vector."""

    def __init__(self, style: Style = "eager", *, quick: bool = False, classes: int = 10) -> None:
        super().__init__()
        width = 32
        self.patches = nn.Conv2d(3, width, 4, 4, bias=not quick)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, width, generator=torch.Generator().manual_seed(3)))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 17, width, generator=torch.Generator().manual_seed(4)))
        self.before = nn.LayerNorm(width) if quick else nn.Identity()
        self.layers = nn.ModuleList(EncoderLayer(width, 4, style, quick=quick) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes, bias=not quick)

    def forward(self, image: Tensor) -> Tensor:
        """Read 16-pixel images."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = self.before(torch.cat([self.token.expand(image.shape[0], -1, -1), x], 1) + self.positions)
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(self.norm(x)[:, 0])
        return result


class Clip(nn.Module):
    """CLIP-type network: how well texts and images go together."""

    def __init__(self, style: Style = "eager") -> None:
        super().__init__()
        width, common = 24, 16
        self.image = VisionTower(style, quick=True, classes=common)
        self.words, self.positions = nn.Embedding(50, width), nn.Embedding(40, width)
        self.layers = nn.ModuleList(EncoderLayer(width, 3, style, quick=True) for _ in range(2))
        self.norm, self.project = nn.LayerNorm(width), nn.Linear(width, common, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, tokens: Tensor, seen: Tensor, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores of every pair, and both towers' vectors; a text is read at its largest token, its last one."""
        length = tokens.shape[1]
        x = self.words(tokens) + self.positions(torch.arange(length))[None]
        mask = later(length) + (1.0 - seen[:, None, None, :].float()) * -1e9
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        text = self.project(x[torch.arange(x.shape[0]), tokens.argmax(-1)])
        seen_image = self.image(image)
        text, seen_image = (y / y.norm(dim=-1, keepdim=True) for y in (text, seen_image))
        return text @ seen_image.t() * self.scale.exp(), text, seen_image


class TorchLayer(nn.Module):
    """torch's own attention, which gives its weights, too, unless it is told not to; and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y)[0]
        result: Tensor = x + self.down(functional.relu(self.up(self.norm2(x))))
        return result


class TorchEncoder(nn.Module):
    """What reads 9 vectors, as DETR and its kin."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(TorchLayer(24, 3) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return numbers for every vector."""
        result: Tensor = self.head(self.norm(self.layers(x)))
        return result


class WindowAttention(nn.Module):
    """Attention within windows, one learned number per head and distance; neighbours of a shifted image stay apart."""

    def __init__(self, width: int, heads: int, window: int, style: Style) -> None:
        super().__init__()
        self.heads, self.style, self.window = heads, style, window
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.table = nn.Parameter(0.3 * torch.randn((2 * window - 1) ** 2, heads))
        places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", apart[:, :, 0] * (2 * window - 1) + apart[:, :, 1])

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attend in windows of shape (batch * windows, places, width)."""
        count, places, width = x.shape
        q, k, v = (split_heads(layer(x), width // self.heads) for layer in (self.q, self.k, self.v))
        bias = self.table[self.index.view(-1)].view(places, places, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
        if self.style == "eager":
            scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + bias
            if mask is not None:
                windows = mask.shape[0]
                scores = scores.view(count // windows, windows, self.heads, places, places) + mask[:, None][None]
                scores = scores.view(-1, self.heads, places, places)
            out = (scores.softmax(-1) @ v).permute(0, 2, 1, 3).contiguous()
        else:
            if mask is not None:
                bias = (bias + mask[:, None]).repeat(count // mask.shape[0], 1, 1, 1)
            out = mixed(q, k, v, bias, self.style)
        result: Tensor = self.o(out.view(count, places, width))
        return result


class SwinBlock(nn.Module):
    """Windows of an image, every other time shifted by half of one."""

    def __init__(self, width: int, heads: int, side: int, shift: int, style: Style) -> None:
        super().__init__()
        self.side, self.window, self.shift = side, 4, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, self.window, style)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        parts = torch.zeros(1, side, side, 1)
        edges = (slice(0, -4), slice(-4, -2), slice(-2, None))
        for number, (rows, columns) in enumerate((r, c) for r in edges for c in edges):
            parts[:, rows, columns] = number
        flat = self._windows(parts).squeeze(-1)
        self.register_buffer("mask", torch.where(flat[:, None] != flat[:, :, None], -100.0, 0.0) if shift else None)

    def _windows(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        x = x.view(batch, height // self.window, self.window, width // self.window, self.window, channels)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, self.window**2, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches; x is (batch, side * side, width)."""
        batch, _, width = x.shape
        y = self.norm1(x).view(batch, self.side, self.side, width)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self.attention(self._windows(y), self.mask)
        count = self.side // self.window
        y = y.view(-1, count, count, self.window, self.window, width).permute(0, 1, 3, 2, 4, 5).contiguous()
        y = y.view(-1, self.side, self.side, width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y.view(batch, self.side * self.side, width)
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


class PatchMerging(nn.Module):
    """Four neighbours become one place."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side, self.norm, self.reduce = side, nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Halve both sides."""
        batch, _, width = x.shape
        x = x.view(batch, self.side, self.side, width)
        x = torch.cat([x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1)
        result: Tensor = self.reduce(self.norm(x.view(batch, -1, 4 * width)))
        return result


class Swin(nn.Module):
    """Swin-type network with two stages."""

    def __init__(self, style: Style = "eager") -> None:
        super().__init__()
        width = 24
        self.patches, self.norm = nn.Conv2d(3, width, 2, 2), nn.LayerNorm(width)
        self.layers = nn.Sequential(
            SwinBlock(width, 3, 8, 0, style),
            SwinBlock(width, 3, 8, 2, style),
            PatchMerging(width, 8),
            *(SwinBlock(2 * width, 6, 4, 0, style) for _ in range(4)),
        )
        self.last, self.head = nn.LayerNorm(2 * width), nn.Linear(2 * width, 10)

    def forward(self, image: Tensor) -> Tensor:
        """Classify 16-pixel images."""
        x = self.norm(self.patches(image).flatten(2).transpose(1, 2))
        result: Tensor = self.head(self.last(self.layers(x)).transpose(1, 2).mean(-1))
        return result
