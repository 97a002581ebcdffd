"""Attention: every channel of the image in front is a head, whose size is the width of the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle, cast

MICROSOFT = "com.microsoft"
LENGTH, SIZE = 8, 8
#: Heads of keys and values that query heads share.
SHARED = 2


def _ints(g: GraphBuilder, name: str, *values: int) -> str:
    return g.constant(name, np.array(values, np.int64))


def tokens(g: GraphBuilder, image: str) -> str:
    """Rows of an image as a sequence, the channels of a row behind each other."""
    count = g.channels(image)
    rows = g.node("Transpose", [image], [LENGTH, count, SIZE], perm=[0, 2, 1, 3])
    return g.node("Reshape", [rows, _ints(g, f"{rows}_flat", 0, LENGTH, count * SIZE)], [LENGTH, count * SIZE])


def heads(g: GraphBuilder, image: str) -> str:
    """An image as (batch, heads, length, size); it is one already."""
    return image


def _image(g: GraphBuilder, sequence: str, count: int = WIDTH) -> str:
    rows = g.node("Reshape", [sequence, _ints(g, f"{sequence}_rows", 0, LENGTH, count, SIZE)], [LENGTH, count, SIZE])
    return g.node("Transpose", [rows], [count, LENGTH, SIZE], perm=[0, 2, 1, 3])


def _operator(
    g: GraphBuilder,
    op: str,
    inputs: Sequence[str],
    results: dict[str, tuple[int, ...]],
    domain: str = "",
    **attrs: object,
) -> None:
    g.nodes.append(helper.make_node(op, list(inputs), list(results), name="attention", domain=domain, **attrs))
    g.shapes.update(results)


def _per_sample(g: GraphBuilder, value: int, to: int) -> str:
    """A number for every sample of the batch, shape (batch, 1)."""
    nothing = g.node("MatMul", [g.flatten("x"), g.constant("nothing", np.zeros((192, 1), np.float32))], [1])
    number = g.node("Add", [nothing, g.constant("number", np.array(value, np.float32))], [1])
    return cast(g, number, to)


def through_grouped_queries(packed: bool, cached: bool) -> Middle:
    """Where keys and values are given out their heads stay, and those of queries go, equally many per group."""

    def middle(g: GraphBuilder, x: str) -> str:
        parts = [tokens(g, image) for image in (x, g.conv("x", SHARED), g.conv("x", SHARED))]
        if packed:
            width = (WIDTH + 2 * SHARED) * SIZE
            parts = [g.node("Concat", parts, [LENGTH, width], axis=2), "", ""]
        lengths = g.node("Reshape", [_per_sample(g, LENGTH - 1, TensorProto.INT32), _ints(g, "vector", -1)], [])
        total = g.constant("total", np.array(LENGTH, np.int32))
        sink = g.constant("sink", g.normal(WIDTH))
        results: dict[str, tuple[int, ...]] = {"mixed": (LENGTH, WIDTH * SIZE)}
        if cached:
            results |= dict.fromkeys(("present_key", "present_value"), (SHARED, LENGTH, SIZE))
            g.outputs.extend(["present_key", "present_value"])
        inputs = [*parts, "", "", lengths, total, "", "", "", "", sink]
        _operator(g, "GroupQueryAttention", inputs, results, MICROSOFT, num_heads=WIDTH, kv_num_heads=SHARED)
        return _image(g, "mixed")

    return middle


def through_multi_head_attention(crossed: bool) -> Middle:
    """With a number that is added to the scores of every head; keys and values of cross attention have four axes."""

    def middle(g: GraphBuilder, x: str) -> str:
        queries, *others = x, g.conv("x", WIDTH), g.conv("x", WIDTH)
        bias = "" if crossed else g.constant("bias", g.normal(3 * WIDTH * SIZE, std=0.3))
        added = g.constant("added", g.normal(1, WIDTH, LENGTH, LENGTH))
        parts = others if crossed else [tokens(g, image) for image in others]
        inputs = [tokens(g, queries), *parts, bias, "", added]
        _operator(g, "MultiHeadAttention", inputs, {"mixed": (LENGTH, WIDTH * SIZE)}, MICROSOFT, num_heads=WIDTH)
        return _image(g, "mixed")

    return middle


def through_self_attention(sizes: Sequence[int] | None) -> Middle:
    """Channels are read by the weight that the operator holds, whose columns are heads."""
    widths = list(sizes or (12, 12, 12))

    def middle(g: GraphBuilder, x: str) -> str:
        flat = g.node("Reshape", [x, _ints(g, "flat", 0, WIDTH, 64)], [WIDTH, 64])
        positions = g.node("Transpose", [flat], [64, WIDTH], perm=[0, 2, 1])
        inputs = [
            positions,
            g.constant("weights", g.normal(WIDTH, sum(widths))),
            g.constant("bias", g.normal(sum(widths))),
        ]
        attrs = {} if sizes is None else {"qkv_hidden_sizes": widths}
        _operator(g, "Attention", inputs, {"mixed": (64, widths[2])}, MICROSOFT, num_heads=3, **attrs)
        back = g.node("Transpose", ["mixed"], [widths[2], 64], perm=[0, 2, 1])
        return g.node("Reshape", [back, _ints(g, "image", 0, widths[2], 8, 8)], [widths[2], 8, 8])

    return middle


def through_attention(flat: bool, cached: bool = False) -> Middle:
    """ONNX's own, on three or four dimensions."""
    lay_out = tokens if flat else heads

    def middle(g: GraphBuilder, x: str) -> str:
        parts = [lay_out(g, image) for image in (x, g.conv("x", SHARED), g.conv("x", SHARED))]
        mask = g.constant("mask", g.normal(WIDTH, LENGTH, LENGTH))
        results: dict[str, tuple[int, ...]] = {"mixed": (LENGTH, WIDTH * SIZE) if flat else (WIDTH, LENGTH, SIZE)}
        if cached:
            results |= dict.fromkeys(("present_key", "present_value"), (SHARED, LENGTH, SIZE))
            g.outputs.extend(["present_key", "present_value"])
        attrs = {"q_num_heads": WIDTH, "kv_num_heads": SHARED} if flat else {}
        _operator(g, "Attention", [*parts, mask], results, **attrs)
        return _image(g, "mixed") if flat else "mixed"

    return middle


def through_rotary(microsoft: bool, flat: bool) -> Middle:
    """Positions are the numbers of the rows."""

    def middle(g: GraphBuilder, x: str) -> str:
        numbers = g.node("Add", [_per_sample(g, 0, TensorProto.INT64), g.constant("rows", np.arange(LENGTH))], [LENGTH])
        tables = [g.constant(name, g.uniform(-1, 1, LENGTH, SIZE // 2)) for name in ("cosines", "sines")]
        inputs = [tokens(g, x) if flat else x]
        inputs += [numbers, *tables] if microsoft else [*tables, numbers]
        shape = (LENGTH, WIDTH * SIZE) if flat else (WIDTH, LENGTH, SIZE)
        attrs = {"num_heads": WIDTH} if flat and not microsoft else {}
        _operator(g, "RotaryEmbedding", inputs, {"turned": shape}, MICROSOFT if microsoft else "", **attrs)
        return _image(g, "turned") if flat else "turned"

    return middle


def through_embedding(g: GraphBuilder, x: str) -> str:
    """Rows of normalised tables are added to the rows of the image."""
    ids = g.node(
        "Add", [_per_sample(g, 1, TensorProto.INT32), g.constant("rows", np.arange(LENGTH, dtype=np.int32))], [LENGTH]
    )
    tables = [g.constant(f"table_{i}", g.normal(16, SIZE)) for i in range(2)]
    scale, shift = (g.constant(name, g.uniform(0.5, 1.5, SIZE)) for name in ("scale", "shift"))
    inputs = [ids, "", *tables, "", scale, shift]
    _operator(g, "EmbedLayerNormalization", inputs, {"embedded": (LENGTH, SIZE), "index": ()}, MICROSOFT)
    del g.shapes["index"]  # whole numbers, which the builder does not know
    return g.node("Add", [x, g.node("Unsqueeze", ["embedded", _ints(g, "channel", 1)], [1, 8, 8])], g.shapes[x])


def through_few_bits(g: GraphBuilder, x: str) -> str:
    """A product with a weight of four bits, and with an order of its columns, reads the channels."""
    flat = g.flatten(g.global_average_pool(x))
    packed = g.rng.integers(0, 256, (8, 1, 8), dtype=np.uint8)
    inputs = [flat, g.constant("packed", packed), g.constant("scales", g.uniform(0.1, 0.2, 8)), ""]
    inputs.append(g.constant("order", np.zeros(WIDTH, np.int32)))
    product = g.node("MatMulNBits", inputs, [8], domain=MICROSOFT, K=WIDTH, N=8, bits=4, block_size=16)
    return g.relu(g.gemm(product, 6))
