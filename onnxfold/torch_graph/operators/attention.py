"""Rotary position embeddings, and attention in one operator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onnxfold.torch_graph.registry import Operation, TorchNode, operation, operator

#: Added to scores of what is not seen.
_UNSEEN = -1e30
#: Where the inputs behind the tables of rotary positions begin, and where sinks are among the inputs.
_TABLES, _SINKS = 9, 11


@operator("RotaryEmbedding", domain="com.microsoft")
def rotary_embedding(node: TorchNode) -> Operation:
    """Turn heads by angles that grow with their positions."""
    if node.integer("is_packed_batching", 0) or node.number("scale", 1.0) != 1.0:
        raise node.unsupported("it packs batches or scales positions")
    interleaved, heads = bool(node.integer("interleaved", 0)), node.integer("num_heads", 0)
    turn = partial(standard_rotary_embedding, interleaved=interleaved, num_heads=heads)
    return lambda x, positions, cosines, sines: turn(x, cosines, sines, positions)


@operation("RotaryEmbedding", since=23)
def standard_rotary_embedding(
    x: Tensor, cosines: Tensor, sines: Tensor, positions: Tensor | None = None, *,
    interleaved: bool = False, num_heads: int = 0,
) -> Tensor:  # fmt: skip
    """Turn pairs of dimensions of heads by angles that grow with their positions; angles may come for every position.

    Heads are an axis of their own, or lie behind each other on the last one. Dimensions behind the last pair stay.
    """
    turned = 2 * cosines.shape[-1]
    cosines, sines = (t[:, None] if positions is None else _angles(positions, t, x) for t in (cosines, sines))
    heads = _split_heads(x, num_heads or x.shape[-1] // turned)
    front, rest = heads[..., :turned], heads[..., turned:]
    a, b = (front[..., 0::2], front[..., 1::2]) if interleaved else front.chunk(2, dim=-1)
    pairs = a * cosines - b * sines, b * cosines + a * sines
    front = torch.stack(pairs, dim=-1).flatten(-2) if interleaved else torch.cat(pairs, dim=-1)
    result = torch.cat((front, rest), dim=-1)
    return result if x.ndim == 4 else _merge_heads(result)


def _angles(positions: Tensor, table: Tensor, x: Tensor) -> Tensor:
    """Return the rows of a table for all positions, shape (batch, 1, length, pairs)."""
    length = x.shape[-2]
    if positions.numel() == 1 and positions.ndim < 2:
        positions = positions.reshape(1, 1) + torch.arange(length, device=positions.device)
    return table[positions][:, None]


@dataclass(frozen=True)
class _Scores:
    """How queries and keys give scores."""

    scale: float = 0.0  # 0: one by the root of the size of a head
    is_causal: bool = False
    softcap: float = 0.0


def _attend(
    heads: Sequence[Tensor], past: Sequence[Any], kind: _Scores, bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the values that heads of queries read, (batch, heads, length, size); keys and values behind a cache."""
    queries, *cache = heads
    if not any(x is None for x in past):
        cache = [torch.cat(pair, dim=2) for pair in zip(past, cache, strict=True)]
    keys, values = (x.repeat_interleave(queries.shape[1] // x.shape[1], dim=1) for x in cache)
    scores = (kind.scale or 1.0 / math.sqrt(queries.shape[-1])) * (queries @ keys.mT)
    scores = kind.softcap * torch.tanh(scores / kind.softcap) if kind.softcap else scores
    if bias is not None:
        scores = scores.masked_fill(~bias, _UNSEEN) if bias.dtype == torch.bool else scores + bias
    if kind.is_causal:
        length, total = scores.shape[-2:]
        seen = torch.ones(length, total, dtype=torch.bool, device=scores.device).tril(total - length)
        scores = scores.masked_fill(~seen, _UNSEEN)
    if sinks is not None:
        nothing = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, nothing), dim=-1)
    return torch.softmax(scores, dim=-1)[..., : values.shape[2]] @ values, *cache


@operator("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(node: TorchNode) -> Operation:
    """Causal attention with a cache, queries in groups that share keys and values, rotary positions perhaps inside."""
    if node.integer("smooth_softmax", 0) > 0 or node.integer("qk_output", 0) or node.integer("kv_cache_bit_width", 0):
        raise node.unsupported("it has a smooth softmax, gives its scores, or quantises its cache")
    heads, shared = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    turns, interleaved = node.integer("do_rotary", 0), bool(node.integer("rotary_interleaved", 0))
    kind = _Scores(node.number("scale", 0.0), is_causal=True, softcap=node.number("softcap", 0.0))
    window = node.integer("local_window_size", -1)

    def run(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        query, key, value, past_key, past_value, lengths, _, cosines, sines, *others = _padded(inputs, _SINKS + 1)
        sinks = others.pop(_SINKS - _TABLES)
        if any(other is not None for other in others):
            raise node.unsupported("it has positions, a bias of scores, or norms of its own")
        if key is None or value is None:
            size = query.shape[-1] // (heads + 2 * shared)
            query, key, value = torch.split(query, [heads * size, shared * size, shared * size], dim=-1)
        q, k, v = _split_heads(query, heads), _split_heads(key, shared), _split_heads(value, shared)
        past = 0 if past_key is None else past_key.shape[2]
        length = past + q.shape[2]
        if not bool((lengths == length - 1).all()) or (0 < window < length):
            raise node.unsupported("sequences are padded, or longer than its window")
        if turns and cosines is not None and sines is not None:
            tables = cosines[None, past:length], sines[None, past:length]
            q, k = (standard_rotary_embedding(x, *tables, interleaved=interleaved) for x in (q, k))
        result, k, v = _attend((q, k, v), (past_key, past_value), kind, sinks=sinks)
        return _merge_heads(result), k, v

    return run


@operator("MultiHeadAttention", domain="com.microsoft")
def multi_head_attention(node: TorchNode) -> Operation:
    """Attention of queries, keys and values that come apart, with a cache perhaps."""
    heads = node.integer("num_heads", 0)
    kind = _Scores(node.number("scale", 0.0), is_causal=bool(node.integer("unidirectional", 0)))

    def run(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        query, key, value, bias, padding, scores, past_key, past_value, *others = _padded(inputs, 8)
        if key is None or value is None or padding is not None or any(other is not None for other in others):
            raise node.unsupported("its inputs are packed, padded, or share a cache")
        if bias is not None:
            parts = torch.split(bias, [query.shape[-1], key.shape[-1], value.shape[-1]])
            query, key, value = (x + part for x, part in zip((query, key, value), parts, strict=True))
        heads_of_all = [_split_heads(x, heads) for x in (query, key, value)]
        result, k, v = _attend(heads_of_all, (past_key, past_value), kind, scores)
        return _merge_heads(result), k, v

    return run


@operator("Attention", domain="com.microsoft")
def packed_attention(node: TorchNode) -> Operation:
    """Attention whose weights for queries, keys and values lie in the operator."""
    heads, sizes = node.integer("num_heads", 0), node.integers("qkv_hidden_sizes", ())
    kind = _Scores(node.number("scale", 0.0), is_causal=bool(node.integer("unidirectional", 0)))
    if node.integer("do_rotary", 0) or node.integer("past_present_share_buffer", 0):
        raise node.unsupported("it turns heads, or shares its cache")

    def run(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        x, weights, bias, mask, past, scores, *others = _padded(inputs, 6)
        if mask is not None and (mask.ndim != 2 or any(other is not None for other in others)):
            raise node.unsupported("its mask is no row per sequence")
        y = x @ weights if bias is None else x @ weights + bias
        parts = [_split_heads(part, heads) for part in y.split(list(sizes) or y.shape[-1] // 3, dim=-1)]
        if mask is not None:
            hidden = torch.where(mask[:, None, None] > 0, 0.0, _UNSEEN).to(y.dtype)
            scores = hidden if scores is None else scores + hidden
        result, *cache = _attend(parts, (None, None) if past is None else past, kind, scores)
        return (_merge_heads(result), torch.stack(cache)) if node.has_output(1) else (_merge_heads(result),)

    return run


@operator("Attention", since=23)
def standard_attention(node: TorchNode) -> Operation:
    """ONNX's attention."""
    heads, shared = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
    kind = _Scores(node.number("scale", 0.0), bool(node.integer("is_causal", 0)), node.number("softcap", 0.0))
    if node.has_output(3):
        raise node.unsupported("its scores are read")

    def run(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        query, key, value, mask, past_key, past_value, *others = _padded(inputs, 6)
        if any(other is not None for other in others):
            raise node.unsupported("sequences are padded")
        if past_key is None and kind.is_causal and query.shape[-2] != key.shape[-2]:
            raise node.unsupported("it is causal, and there are other numbers of queries and keys")
        q, k, v = _split_heads(query, heads), _split_heads(key, shared), _split_heads(value, shared)
        result, k, v = _attend((q, k, v), (past_key, past_value), kind, mask)
        return (_merge_heads(result) if query.ndim == 3 else result), k, v

    return run


def _padded(inputs: Sequence[Any], count: int) -> Sequence[Any]:
    """Return the inputs of a node, None for those at the end that it leaves out."""
    return (*inputs, *[None] * (count - len(inputs)))


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Return heads on an axis of their own: (batch, heads, length, size)."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    """Return heads behind each other: (batch, length, heads times size)."""
    return x.transpose(1, 2).flatten(2)
