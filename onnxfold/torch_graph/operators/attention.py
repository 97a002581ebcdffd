"""Attention in one operator."""

import math

import torch
from torch import Tensor

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.operators.rotary_embedding import rotate_heads
from onnxfold.torch_graph.registry import Operation, operator

#: Added to scores of what is not seen.
_UNSEEN = -1e30
#: Where sinks come among the inputs behind the tables of rotary positions.
_SINKS = 2


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    bias: Tensor | None,
    *,
    causal: bool,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return the values that every head of queries reads, shape (batch, heads, length, size of values)."""
    each = queries.shape[1] // keys.shape[1]
    if each > 1:
        keys, values = keys.repeat_interleave(each, dim=1), values.repeat_interleave(each, dim=1)
    scores = scale * (queries @ keys.mT)
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if bias is not None:
        scores = scores.masked_fill(~bias, _UNSEEN) if bias.dtype == torch.bool else scores + bias
    if causal:
        length, total = scores.shape[-2:]
        seen = torch.ones(length, total, dtype=torch.bool, device=scores.device).tril(total - length)
        scores = scores.masked_fill(~seen, _UNSEEN)
    if sinks is None:
        return torch.softmax(scores, dim=-1) @ values
    nothing = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, nothing), dim=-1), dim=-1)[..., :-1] @ values


@operator("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(node: TorchNode) -> Operation:
    """Causal attention with a cache, queries in groups that share keys and values, rotary positions perhaps inside."""
    if node.integer("smooth_softmax", 0) > 0 or node.integer("qk_output", 0) or node.integer("kv_cache_bit_width", 0):
        raise node.unsupported("it has a smooth softmax, gives its scores, or quantises its cache")
    heads, shared = node.integer("num_heads", 0), node.integer("kv_num_heads", 0)
    turns, interleaved = node.integer("do_rotary", 0), bool(node.integer("rotary_interleaved", 0))
    scale, softcap = node.number("scale", 0.0), node.number("softcap", 0.0)
    window = node.integer("local_window_size", -1)

    def run(
        query: Tensor, key: Tensor | None, value: Tensor | None, past_key: Tensor | None, past_value: Tensor | None,
        lengths: Tensor, total: Tensor, cosines: Tensor | None = None, sines: Tensor | None = None,
        *others: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        sinks = others[_SINKS] if len(others) > _SINKS else None
        if any(other is not None for other in others if other is not sinks):
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
            tables = cosines[past:length], sines[past:length]
            q, k = (rotate_heads(x, *tables, interleaved=interleaved) for x in (q, k))
        if past_key is not None and past_value is not None:
            k, v = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
        factor = scale or 1.0 / math.sqrt(q.shape[-1])
        return _merge_heads(attend(q, k, v, factor, None, causal=True, softcap=softcap, sinks=sinks)), k, v

    return run


@operator("MultiHeadAttention", domain="com.microsoft")
def multi_head_attention(node: TorchNode) -> Operation:
    """Attention of queries, keys and values that come apart, with a cache perhaps."""
    heads, scale, causal = node.integer("num_heads", 0), node.number("scale", 0.0), node.integer("unidirectional", 0)

    def run(
        query: Tensor, key: Tensor | None = None, value: Tensor | None = None, bias: Tensor | None = None,
        padding: Tensor | None = None, scores: Tensor | None = None, past_key: Tensor | None = None,
        past_value: Tensor | None = None, *others: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if key is None or value is None or padding is not None or any(other is not None for other in others):
            raise node.unsupported("its inputs are packed, padded, or share a cache")
        if bias is not None:
            parts = torch.split(bias, [query.shape[-1], key.shape[-1], value.shape[-1]])
            query, key, value = (x + part for x, part in zip((query, key, value), parts, strict=True))
        q, k, v = _split_heads(query, heads), _split_heads(key, heads), _split_heads(value, heads)
        if past_key is not None and past_value is not None:
            k, v = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
        factor = scale or 1.0 / math.sqrt(q.shape[-1])
        return _merge_heads(attend(q, k, v, factor, scores, causal=bool(causal))), k, v

    return run


@operator("Attention", domain="com.microsoft")
def packed_attention(node: TorchNode) -> Operation:
    """Attention whose weights for queries, keys and values lie in the operator."""
    heads, scale = node.integer("num_heads", 0), node.number("scale", 0.0)
    causal, sizes = bool(node.integer("unidirectional", 0)), node.integers("qkv_hidden_sizes", ())
    if node.integer("do_rotary", 0) or node.integer("past_present_share_buffer", 0):
        raise node.unsupported("it turns heads, or shares its cache")

    def run(
        x: Tensor, weights: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
        past: Tensor | None = None, scores: Tensor | None = None, *others: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if mask is not None and (mask.ndim != 2 or any(other is not None for other in others)):
            raise node.unsupported("its mask is no row per sequence")
        y = x @ weights if bias is None else x @ weights + bias
        q, k, v = (_split_heads(part, heads) for part in torch.split(y, list(sizes) or [y.shape[-1] // 3] * 3, dim=-1))
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        if mask is not None:
            hidden = torch.where(mask[:, None, None] > 0, 0.0, _UNSEEN).to(y.dtype)
            scores = hidden if scores is None else scores + hidden
        factor = scale or 1.0 / math.sqrt(q.shape[-1])
        result = _merge_heads(attend(q, k, v, factor, scores, causal=causal))
        return (result, torch.stack((k, v))) if node.has_output(1) else (result,)

    return run


@operator("Attention", since=23)
def standard_attention(node: TorchNode) -> Operation:
    """ONNX's attention."""
    heads, shared = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
    scale, causal = node.number("scale", 0.0), bool(node.integer("is_causal", 0))
    softcap = node.number("softcap", 0.0)
    if node.has_output(3):
        raise node.unsupported("its scores are read")

    def run(
        query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, past_key: Tensor | None = None,
        past_value: Tensor | None = None, *others: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if any(other is not None for other in others):
            raise node.unsupported("sequences are padded")
        flat = query.ndim == 3
        q, k, v = (
            (query, key, value)
            if not flat
            else (_split_heads(query, heads), _split_heads(key, shared), _split_heads(value, shared))
        )
        if past_key is not None and past_value is not None:
            k, v = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
        elif causal and q.shape[2] != k.shape[2]:
            raise node.unsupported("it is causal, and there are other numbers of queries and keys")
        result = attend(q, k, v, scale or 1.0 / math.sqrt(q.shape[-1]), mask, causal=causal, softcap=softcap)
        return (_merge_heads(result) if flat else result), k, v

    return run


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """Return heads on an axis of their own: (batch, heads, length, size)."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    """Return heads behind each other: (batch, length, heads times size)."""
    return x.transpose(1, 2).flatten(2)
