"""Attention and what stands around it in language models: one operator for all heads."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import MICROSOFT
from testing.random_graphs.network import Network

place = Blocks()


def _heads(g: Network) -> tuple[int, int]:
    """Return a number of heads, and how many of them share keys and values."""
    shared = g.integer(1, 2)
    return shared * g.integer(1, 2), shared


def _cache(g: Network, steps: int, width: int) -> list[str]:
    """Return tables of cosines and sines."""
    angles = np.outer(np.arange(steps), 1.0 / 10.0 ** np.arange(width))
    return [g.const(table(angles).astype(g.dtype)) for table in (np.cos, np.sin)]


@place("Attention", ranks=(2, 2), weight=0.5)
def _attention(g: Network, x: str, op: str) -> str:
    count, shared = _heads(g)
    size, steps = 2 * g.integer(1, 2), g.shapes[x][0]
    queries, keys, values = (g.linear(x, n * size) for n in (count, shared, shared))
    attrs = {"is_causal": 1} if g.chance(0.5) else {}
    shape = [steps, count * size]
    return g.node(op, [queries, keys, values], shape, q_num_heads=count, kv_num_heads=shared, **attrs)


@place("Attention-microsoft", ranks=(2, 2), weight=0.5)
def _self_attention(g: Network, x: str, op: str) -> str:
    count, size = g.integer(1, 4), 2 * g.integer(1, 2)
    steps, inputs = g.shapes[x]
    weight = g.const(g.normal(inputs, 3 * count * size, std=1 / math.sqrt(inputs)))
    args = [x, weight, g.const(g.normal(3 * count * size, std=0.3))]
    return g.node("Attention", args, [steps, count * size], MICROSOFT, num_heads=count)


@place("MultiHeadAttention", ranks=(2, 2), weight=0.5)
def _multi_head_attention(g: Network, x: str, op: str) -> str:
    count, size = g.integer(1, 4), 2 * g.integer(1, 2)
    args = [g.linear(x, count * size) for _ in range(3)]
    if g.chance(0.5):
        args.append(g.const(g.normal(3 * count * size, std=0.3)))
    return g.node(op, args, [g.shapes[x][0], count * size], MICROSOFT, num_heads=count)


@place("GroupQueryAttention", ranks=(2, 2), weight=0.5)
def _grouped_query_attention(g: Network, x: str, op: str) -> str:
    count, shared = _heads(g)
    size, steps = 8, g.shapes[x][0]
    if g.chance(0.5):
        args = [g.linear(x, (count + 2 * shared) * size), "", ""]
    else:
        args = [g.linear(x, n * size) for n in (count, shared, shared)]
    per_sample = g.cast(g.add_input((), integers=1), TensorProto.INT32)
    zeros = g.same("Mul", per_sample, g.const(np.array(0, np.int32)))
    lengths = g.same("Add", zeros, g.const(np.array(steps - 1, np.int32)))
    args += ["", "", lengths, g.const(np.array(steps, np.int32))]
    return g.node(op, args, [steps, count * size], MICROSOFT, num_heads=count, kv_num_heads=shared)


@place("RotaryEmbedding", "RotaryEmbedding-microsoft", ranks=(2, 2), weight=0.5)
def _rotary_embedding(g: Network, x: str, op: str) -> str:
    count, half = g.integer(1, 4), g.integer(1, 2)
    steps = g.shapes[x][0]
    turned = g.linear(x, 2 * half * count)
    positions = g.add_input((steps,), integers=steps)
    tables = _cache(g, steps, half)
    if op == "RotaryEmbedding":
        return g.same(op, turned, *tables, positions, num_heads=count)
    return g.same("RotaryEmbedding", turned, positions, *tables, domain=MICROSOFT)


@place("EmbedLayerNormalization", weight=0.5)
def _embedding(g: Network, x: str, op: str) -> str:
    """Numbers from an input of their own; the tensor is not read."""
    rows, width, steps = g.integer(3, 9), g.width(), g.integer(1, 5)
    ids = g.cast(g.add_input((steps,), integers=rows), TensorProto.INT32)
    tables = [g.const(g.normal(rows, width)), g.const(g.normal(steps, width))]
    scale, shift = g.const(g.normal(width, mean=1, std=0.4)), g.const(g.normal(width, std=0.3))
    args = [ids, "", tables[0], tables[1], "", scale, shift]
    return g.nodes_out(op, args, [(steps, width), None], MICROSOFT, epsilon=0.01)[0]


@place("MatMulNBits", ranks=(1, 3), weight=0.5)
def _product_of_bits(g: Network, x: str, op: str) -> str:
    *leading, inputs = g.shapes[x]
    outputs, block = g.width(), 16
    blocks = -(-inputs // block)
    weight = g.const(g.rng.integers(0, 256, (outputs, blocks, block // 2)).astype(np.uint8))
    scales = g.const(g.normal(outputs * blocks, mean=0.2, std=0.02))
    order = g.const(np.zeros(inputs, np.int32))  # with one, the weight stays as it is
    return g.node(
        op,
        [x, weight, scales, "", order],
        [*leading, outputs],
        MICROSOFT,
        K=inputs,
        N=outputs,
        bits=4,
        block_size=block,
    )
