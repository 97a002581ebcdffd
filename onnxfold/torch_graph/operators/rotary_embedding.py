"""Rotary position embeddings."""

import torch
from torch import Tensor

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator


def rotate_heads(x: Tensor, cosines: Tensor, sines: Tensor, *, interleaved: bool) -> Tensor:
    """Return heads whose pairs of dimensions are turned; dimensions behind the last pair stay."""
    turned = 2 * cosines.shape[-1]
    front, rest = x[..., :turned], x[..., turned:]
    if interleaved:
        a, b = front[..., 0::2], front[..., 1::2]
        pairs = torch.stack((a * cosines - b * sines, b * cosines + a * sines), dim=-1)
        return torch.cat((pairs.flatten(-2), rest), dim=-1)
    a, b = front.chunk(2, dim=-1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines, rest), dim=-1)


@operator("RotaryEmbedding", domain="com.microsoft")
def rotary_embedding(node: TorchNode) -> Operation:
    """Turn heads by angles that grow with their positions."""
    if node.integer("is_packed_batching", 0) or node.number("scale", 1.0) != 1.0:
        raise node.unsupported("it packs batches or scales positions")
    interleaved, heads = bool(node.integer("interleaved", 0)), node.integer("num_heads", 0)

    def run(x: Tensor, positions: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        return _rotate_laid_out(
            x, _angles(positions, cosines, x), _angles(positions, sines, x), heads, interleaved=interleaved
        )

    return run


@operator("RotaryEmbedding", since=23)
def standard_rotary_embedding(node: TorchNode) -> Operation:
    """Turn heads by angles that grow with their positions; angles may come for every position."""
    interleaved, heads = bool(node.integer("interleaved", 0)), node.integer("num_heads", 0)

    def run(x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None = None) -> Tensor:
        turns = [table[:, None] if positions is None else _angles(positions, table, x) for table in (cosines, sines)]
        return _rotate_laid_out(x, turns[0], turns[1], heads, interleaved=interleaved)

    return run


def _angles(positions: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """Return the rows of a table for all positions, shape (batch, 1, length, pairs)."""
    length = x.shape[-2]
    if positions.numel() == 1 and positions.ndim < 2:
        positions = positions.reshape(1, 1) + torch.arange(length, device=positions.device)
    return table[positions][:, None]


def _rotate_laid_out(x: Tensor, cosines: Tensor, sines: Tensor, heads: int, *, interleaved: bool) -> Tensor:
    """Turn heads that are an axis of their own, or that lie behind each other on the last one."""
    if x.ndim == 4:
        return rotate_heads(x, cosines, sines, interleaved=interleaved)
    batch, length, width = x.shape
    size = width // heads if heads else 2 * cosines.shape[-1]
    apart = x.reshape(batch, length, -1, size).transpose(1, 2)
    return rotate_heads(apart, cosines, sines, interleaved=interleaved).transpose(1, 2).reshape(batch, length, width)
