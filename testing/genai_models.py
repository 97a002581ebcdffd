"""Decoders as onnxruntime-genai's builder writes them: one operator for attention, residual sums out of norms."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from testing.language_models import WIDTH, WORDS, TokenGraph

#: Attention in one operator for packed queries, keys and values; for three, the first two of which have a norm per
#: head (Qwen3); or with as many heads of keys as of queries, turned by operators of their own, with or without a cache.
Kind = Literal["packed", "biased", "normed", "multi_head", "multi_head_cached"]

HEADS, SHARED, SIZE, INNER, LONGEST = 6, 2, 16, 80, 64
_INNER_WIDTH = HEADS * SIZE


def _norm(g: TokenGraph, x: str, out: str, width: int = WIDTH) -> str:
    scale = g.constant(f"{out}_scale", g.random.uniform(0.5, 1.5, width).astype(np.float32))
    return g.node("SimplifiedLayerNormalization", [x, scale], out, axis=-1, epsilon=1e-6, stash_type=1)


def _sum_and_norm(g: TokenGraph, x: str, y: str, out: str) -> tuple[str, str]:
    """Return the norm of a sum, and the sum."""
    scale = g.constant(f"{out}_scale", g.random.uniform(0.5, 1.5, WIDTH).astype(np.float32))
    outputs = [out, "", "", f"{out}_sum"]
    attrs: dict[str, Any] = {"name": f"node_{out}", "domain": "com.microsoft", "epsilon": 1e-6}
    g.nodes.append(helper.make_node("SkipSimplifiedLayerNormalization", [x, y, scale], outputs, **attrs))
    return out, outputs[3]


def _linear(g: TokenGraph, x: str, name: str, inputs: int, outputs: int, *, biased: bool = False) -> str:
    y = g.node("MatMul", [x, g.weight(f"{name}_w", inputs, outputs)], name)
    if biased:
        bias = (0.3 * g.random.standard_normal(outputs)).astype(np.float32)
        y = g.node("Add", [y, g.constant(f"{name}_b", bias)], f"{name}_biased")
    return y


def _normed_heads(g: TokenGraph, x: str, name: str, count: int) -> str:
    """Norm every head, on an axis that heads share with positions."""
    apart = g.constant(f"{name}_apart", np.array([0, -1, SIZE]))
    together = g.constant(f"{name}_together", np.array([0, -1, count * SIZE]))
    heads = g.node("Reshape", [x, apart], f"{name}_heads")
    return g.node("Reshape", [_norm(g, heads, f"{name}_norm", SIZE), together], f"{name}_flat")


def _attention(g: TokenGraph, x: str, i: int, kind: Kind, shared: int) -> str:
    """Attend; past and present keys and values are inputs and outputs of the model."""
    several = kind.startswith("multi_head")
    sizes = {"q": HEADS, "k": shared, "v": shared}
    past = [f"past_key_values.{i}.{name}" for name in ("key", "value")]
    outputs = [f"attended_{i}", *(f"present.{i}.{name}" for name in ("key", "value"))]
    attrs: dict[str, Any] = {"num_heads": HEADS, "domain": "com.microsoft", "name": f"attention_{i}"}
    if kind in ("packed", "biased"):
        total = (HEADS + 2 * shared) * SIZE
        parts = [_linear(g, x, f"qkv_{i}", WIDTH, total, biased=kind == "biased"), "", ""]
    else:
        parts = [_linear(g, x, f"{name}_{i}", WIDTH, count * SIZE) for name, count in sizes.items()]
    if kind == "normed":
        parts[:2] = [_normed_heads(g, part, part, sizes[part[0]]) for part in parts[:2]]
    if several:
        for place, part in enumerate(parts[:2]):
            turned = f"{part}_turned"
            inputs = [part, "position_ids", "cosines", "sines"]
            g.nodes.append(helper.make_node("RotaryEmbedding", inputs, [turned], domain="com.microsoft", name=turned))
            parts[place] = turned
        cached = kind == "multi_head_cached"
        inputs, results = [*parts, "", "", "bias", *(past if cached else [])], outputs if cached else outputs[:1]
        g.nodes.append(helper.make_node("MultiHeadAttention", inputs, results, **attrs))
    else:
        inputs = [*parts, *past, "lengths", "total", "cosines", "sines"]
        attrs |= {"kv_num_heads": shared, "do_rotary": 1, "rotary_interleaved": 0, "scale": SIZE**-0.5}
        g.nodes.append(helper.make_node("GroupQueryAttention", inputs, outputs, **attrs))
    return _linear(g, outputs[0], f"o_{i}", _INNER_WIDTH, WIDTH)


def genai_decoder(kind: Kind, seed: int = 0, layers: int = 2, shared: int = SHARED) -> onnx.ModelProto:
    """Return a decoder with heads of 16 and logits over 64 words.

    Parameters
    ----------
    kind : {"packed", "biased", "normed", "multi_head", "multi_head_cached"}
        How queries, keys and values come to the operator.
    seed : int
        Seed of the weights.
    layers : int
        Blocks.
    shared : int
        Heads of keys and values, unless there are as many as of queries.
    """
    g = TokenGraph(seed)
    angles = np.outer(np.arange(LONGEST), 1.0 / 100.0 ** (np.arange(SIZE // 2) / (SIZE // 2)))
    g.constant("cosines", np.cos(angles).astype(np.float32))
    g.constant("sines", np.sin(angles).astype(np.float32))
    x = g.node("Gather", [g.weight("embedding", WORDS, WIDTH, scale=1.0), "input_ids"], "words")
    several = kind.startswith("multi_head")
    shared = HEADS if several else shared
    if several:
        _masked(g)
    else:
        _counted(g)
    normed = _norm(g, x, "norm")
    outputs: dict[str, list[Any]] = {"logits": ["batch_size", "sequence_length", WORDS]}
    for i in range(layers):
        normed, x = _sum_and_norm(g, x, _attention(g, normed, i, kind, shared), f"norm_{i}")
        gate, up = (_linear(g, normed, f"{name}_{i}", WIDTH, INNER) for name in ("gate", "up"))
        active = g.node("Mul", [gate, g.node("Sigmoid", [gate], f"sigmoid_{i}")], f"active_{i}")
        down = _linear(g, g.node("Mul", [active, up], f"gated_{i}"), f"down_{i}", INNER, WIDTH)
        normed, x = _sum_and_norm(g, x, down, f"norm_after_{i}")
    g.node("MatMul", [normed, g.weight("head", WIDTH, WORDS, scale=0.5)], "logits")
    cache = ["batch_size", shared]
    inputs: dict[str, tuple[int, list[Any]]] = {
        "input_ids": (TensorProto.INT64, ["batch_size", "sequence_length"]),
        "attention_mask": (TensorProto.INT64, ["batch_size", "total_sequence_length"]),
    }
    if several:
        inputs["position_ids"] = (TensorProto.INT64, ["batch_size", "sequence_length"])
    for i in range(layers if kind != "multi_head" else 0):
        for name in ("key", "value"):
            inputs[f"past_key_values.{i}.{name}"] = (TensorProto.FLOAT, [*cache, "past_sequence_length", SIZE])
            outputs[f"present.{i}.{name}"] = [*cache, "total_sequence_length", SIZE]
    return g.model(inputs, outputs)


def _counted(g: TokenGraph) -> None:
    """Numbers of tokens, of every sequence less one and of the longest."""
    mask = g.node("Cast", ["attention_mask"], "mask32", to=TensorProto.INT32)
    counted = g.node("ReduceSum", [mask, g.constant("axis", np.array([1], np.int64))], "counted", keepdims=0)
    g.node("Sub", [counted, g.constant("one32", np.array(1, np.int32))], "lengths")
    shape = g.node("Shape", ["attention_mask"], "mask_shape")
    whole = g.node("Gather", [shape, g.constant("second", np.array(1, np.int64))], "total64")
    g.node("Cast", [whole], "total", to=TensorProto.INT32)


def _masked(g: TokenGraph) -> None:
    """What is added to scores, shape (batch, 1, sequence, total): nothing sees what comes later, or padding."""
    axes = [g.constant(f"axis_{i}", np.array([i], np.int64)) for i in range(3)]
    places = g.node("Unsqueeze", ["position_ids", axes[2]], "rows")
    ones = g.node("Sub", [g.node("CumSum", [g.node("Abs", ["attention_mask"], "seen"), axes[1]], "counts"),
                          g.constant("one", np.array(1, np.int64))], "columns_flat")  # fmt: skip
    later = g.node("Greater", [g.node("Unsqueeze", [ones, axes[1]], "columns"), places], "later")
    far, near = g.constant("far", np.float32(-1e4)), g.constant("near", np.float32(0.0))
    g.node("Unsqueeze", [g.node("Where", [later, far, near], "bias_3d"), axes[1]], "bias")


def genai_feeds(model: onnx.ModelProto, batch: int, length: int, past: int, seed: int = 7) -> dict[str, NDArray[Any]]:
    """Draw values for some lengths; onnxruntime takes several tokens behind a past for one sequence only."""
    random = np.random.default_rng(seed)
    past = past if any(info.name.startswith("past") for info in model.graph.input) else 0
    sizes = {"batch_size": batch, "sequence_length": length, "past_sequence_length": past}
    sizes["total_sequence_length"] = length + past
    values: dict[str, NDArray[Any]] = {}
    for info in model.graph.input:
        shape = [sizes.get(d.dim_param, d.dim_value) for d in info.type.tensor_type.shape.dim]
        if info.name == "position_ids":
            values[info.name] = np.tile(np.arange(past, past + length), (batch, 1))
        elif info.name == "attention_mask":
            values[info.name] = np.ones(shape, np.int64)
        elif info.name == "input_ids":
            values[info.name] = random.integers(0, WORDS, shape)
        else:
            values[info.name] = random.normal(size=shape).astype(np.float32)
    return values
