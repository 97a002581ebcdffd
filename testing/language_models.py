"""Tiny language models: decoders with and without a past, an encoder, and a tokenizer file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, HEADS, HIDDEN = 64, 32, 2, 48
SIZE = WIDTH // HEADS
#: Special tokens of the tokenizer, in the order of their ids.
SPECIAL = ("<s>", "[MASK]")

Array = NDArray[Any]


class TokenGraph:
    """Nodes and weights; every method returns the name of its result."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, scale: float | None = None) -> str:
        scale = 1 / math.sqrt(shape[0]) if scale is None else scale
        return self.constant(name, (self.random.standard_normal(shape) * scale).astype(np.float32))

    def constant(self, name: str, values: Array) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, op: str, inputs: list[str], out: str, outputs: int = 1, **attributes: Any) -> str:
        names = [out, *(f"{out}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"node_{out}", **attributes))
        return out

    def norm(self, x: str, out: str) -> str:
        ones = self.constant(f"{out}_scale", np.ones(WIDTH, np.float32))
        return self.node("LayerNormalization", [x, ones], out, axis=-1)

    def feed_forward(self, x: str, name: str) -> str:
        up = self.node("MatMul", [x, self.weight(f"{name}_up_w", WIDTH, HIDDEN)], f"{name}_up")
        active = self.node("Relu", [up], f"{name}_relu")
        return self.node("MatMul", [active, self.weight(f"{name}_down_w", HIDDEN, WIDTH)], f"{name}_down")

    def heads(self, x: str, name: str) -> str:
        """Split (B, S, D) into heads (B, N, S, H)."""
        shape = self.constant(f"{name}_shape", np.array([0, 0, HEADS, SIZE], np.int64))
        return self.node("Transpose", [self.node("Reshape", [x, shape], f"{name}_4d")], name, perm=[0, 2, 1, 3])

    def model(self, inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, list[Any]]) -> onnx.ModelProto:
        infos = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs.items()]
        graph = helper.make_graph(self.nodes, "language_model", infos, results, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def decoder(seed: int = 0, *, layers: int = 1, past: bool = True, positions: int = 0) -> onnx.ModelProto:
    """Return a decoder with decomposed attention and logits over 64 words.

    Parameters
    ----------
    seed : int
        Seed of the weights.
    layers : int
        Blocks.
    past : bool
        Whether it takes and gives keys and values of what it has read.
    positions : int
        Rows of a table of positions that `position_ids` look up; 0: no positions.
    """
    g = TokenGraph(seed)
    x = g.node("Gather", [g.weight("embedding", WORDS, WIDTH, scale=1.0), "input_ids"], "words")
    if positions:
        places = g.node("Gather", [g.weight("positions", positions, WIDTH, scale=0.3), "position_ids"], "places")
        x = g.node("Add", [x, places], "placed")
    mask = _causal_bias(g)
    outputs: dict[str, list[Any]] = {"logits": ["batch", "sequence", WORDS]}
    for i in range(layers):
        h = g.norm(x, f"norm_{i}")
        q, k, v = (
            g.heads(g.node("MatMul", [h, g.weight(f"{n}_{i}_w", WIDTH, WIDTH)], f"{n}_{i}_all"), f"{n}_{i}")
            for n in "qkv"
        )
        if past:
            for kind, new in (("key", k), ("value", v)):
                g.node("Concat", [f"past_key_values.{i}.{kind}", new], f"present.{i}.{kind}", axis=2)
                outputs[f"present.{i}.{kind}"] = ["batch", HEADS, "total", SIZE]
            k, v = f"present.{i}.key", f"present.{i}.value"
        turned = g.node("Transpose", [k], f"kt_{i}", perm=[0, 1, 3, 2])
        scores = g.node("MatMul", [q, turned], f"scores_{i}")
        scaled = g.node("Mul", [scores, g.constant(f"scale_{i}", np.float32(SIZE**-0.5))], f"scaled_{i}")
        chances = g.node("Softmax", [g.node("Add", [scaled, mask], f"biased_{i}")], f"softmax_{i}", axis=-1)
        mixed = g.node("Transpose", [g.node("MatMul", [chances, v], f"mixed_{i}")], f"back_{i}", perm=[0, 2, 1, 3])
        flat = g.node("Reshape", [mixed, g.constant(f"flat_{i}_shape", np.array([0, 0, WIDTH]))], f"flat_{i}")
        out = g.node("MatMul", [flat, g.weight(f"o_{i}_w", WIDTH, WIDTH)], f"o_{i}")
        x = g.node("Add", [x, out], f"attended_{i}")
        x = g.node("Add", [x, g.feed_forward(g.norm(x, f"norm2_{i}"), f"ff_{i}")], f"block_{i}")
    g.node("MatMul", [g.norm(x, "final"), g.weight("head", WIDTH, WORDS, scale=0.5)], "logits")
    inputs: dict[str, tuple[int, list[Any]]] = {
        "input_ids": (TensorProto.INT64, ["batch", "sequence"]),
        "attention_mask": (TensorProto.INT64, ["batch", "total"]),
    }
    if positions:
        inputs["position_ids"] = (TensorProto.INT64, ["batch", "sequence"])
    if past:
        for i in range(layers):
            for kind in ("key", "value"):
                shape = ["batch", HEADS, "past", SIZE]
                inputs[f"past_key_values.{i}.{kind}"] = (TensorProto.FLOAT, shape)
    return g.model(inputs, outputs)


def _causal_bias(g: TokenGraph) -> str:
    """Return 0 for pairs of positions that see each other, a large negative number for others, shape (B, 1, S, T)."""
    for name, value in (("zero", 0), ("one", 1), ("two", 2)):
        g.constant(name, np.array(value, np.int64))
        g.constant(f"at_{name}", np.array([value], np.int64))
    for name in ("input_ids", "attention_mask"):
        g.node("Gather", [g.node("Shape", [name], f"{name}_shape"), "one"], f"{name}_length")
        ones = g.node("Add", [g.node("Mul", [name, "zero"], f"{name}_zeros"), "one"], f"{name}_ones")
        g.node("CumSum", [ones, "one"], f"{name}_places")
    g.node("Sub", ["attention_mask_length", "input_ids_length"], "past_length")
    rows = g.node("Unsqueeze", [g.node("Add", ["input_ids_places", "past_length"], "places_of"), "at_two"], "rows")
    columns = g.node("Unsqueeze", ["attention_mask_places", "at_one"], "columns")
    far, near = g.constant("far", np.float32(-1e4)), g.constant("near", np.float32(0.0))
    causal = g.node("Where", [g.node("Greater", [columns, rows], "later"), far, near], "causal")
    seen = g.node("Unsqueeze", [g.node("Cast", ["attention_mask"], "seen", to=TensorProto.FLOAT), "at_one"], "seen_3d")
    padded = g.node("Mul", [g.node("Sub", [g.constant("all", np.float32(1.0)), seen], "missing"), far], "padded")
    return g.node("Unsqueeze", [g.node("Add", [causal, padded], "bias_3d"), "at_one"], "bias")


def grouped_query_decoder(seed: int = 0, *, free_size: bool = False) -> onnx.ModelProto:
    """Return a decoder as onnxruntime-genai writes it: packed queries, keys and values, GroupQueryAttention.

    Parameters
    ----------
    seed : int
        Seed of the weights.
    free_size : bool
        Leave the size of heads in the caches free, as genai's builder does.
    """
    g = TokenGraph(seed)
    x = g.node("Gather", [g.weight("embedding", WORDS, WIDTH, scale=1.0), "input_ids"], "words")
    g.node("Cast", ["attention_mask"], "mask32", to=TensorProto.INT32)
    g.constant("axis", np.array([1], np.int64))
    counted = g.node("ReduceSum", ["mask32", "axis"], "counted", keepdims=0)
    lengths = g.node("Sub", [counted, g.constant("one32", np.array(1, np.int32))], "lengths")
    shape = g.node("Shape", ["attention_mask"], "mask_shape")
    whole = g.node("Gather", [shape, g.constant("first", np.array(1, np.int64))], "total64")
    whole = g.node("Cast", [whole], "total32", to=TensorProto.INT32)
    width = WIDTH + 2 * SIZE  # two heads of queries, one of keys and values
    packed = g.node("MatMul", [g.norm(x, "norm"), g.weight("qkv_w", WIDTH, width)], "qkv")
    inputs = [packed, "", "", "past_key_values.0.key", "past_key_values.0.value", lengths, whole]
    outputs = ["attended", "present.0.key", "present.0.value"]
    attributes = {"num_heads": HEADS, "kv_num_heads": 1, "domain": "com.microsoft", "name": "attention"}
    g.nodes.append(helper.make_node("GroupQueryAttention", inputs, outputs, **attributes))
    x = g.node("Add", [x, g.node("MatMul", ["attended", g.weight("o_w", WIDTH, WIDTH)], "o")], "residual")
    x = g.node("Add", [x, g.feed_forward(g.norm(x, "norm2"), "ff")], "block")
    g.node("MatMul", [g.norm(x, "final"), g.weight("head", WIDTH, WORDS, scale=0.5)], "logits")
    cache = ["batch", 1, "past_sequence_length", "cache_dim" if free_size else SIZE]
    given: dict[str, tuple[int, list[Any]]] = {
        "input_ids": (TensorProto.INT64, ["batch", "sequence"]),
        "attention_mask": (TensorProto.INT64, ["batch", "total"]),
        "past_key_values.0.key": (TensorProto.FLOAT, cache),
        "past_key_values.0.value": (TensorProto.FLOAT, cache),
    }
    present = ["batch", 1, "total", cache[-1]]
    names = {"logits": ["batch", "sequence", WORDS], "present.0.key": present, "present.0.value": present}
    return g.model(given, names)


def attention_decoder(seed: int = 0, *, layers: int = 1) -> onnx.ModelProto:
    """Return a decoder with Attention of onnxruntime, whose caches hold keys and values together.

    Parameters
    ----------
    seed : int
        Seed of the weights.
    layers : int
        Blocks.
    """
    g = TokenGraph(seed)
    x = g.node("Gather", [g.weight("embedding", WORDS, WIDTH, scale=1.0), "input_ids"], "words")
    mask = g.node("Cast", ["attention_mask"], "mask32", to=TensorProto.INT32)
    inputs: dict[str, tuple[int, list[Any]]] = {
        "input_ids": (TensorProto.INT64, ["batch", "sequence"]),
        "attention_mask": (TensorProto.INT64, ["batch", "total"]),
    }
    outputs: dict[str, list[Any]] = {"logits": ["batch", "sequence", WORDS]}
    for i in range(layers):
        weights = g.weight(f"qkv_{i}_w", WIDTH, 3 * WIDTH), g.constant(f"qkv_{i}_b", np.zeros(3 * WIDTH, np.float32))
        given, found = [g.norm(x, f"norm_{i}"), *weights, mask, f"past_{i}"], [f"attended_{i}", f"present_{i}"]
        attributes = {"num_heads": HEADS, "unidirectional": 1, "domain": "com.microsoft", "name": f"attention_{i}"}
        g.nodes.append(helper.make_node("Attention", given, found, **attributes))
        o = g.node("MatMul", [found[0], g.weight(f"o_{i}_w", WIDTH, WIDTH)], f"o_{i}")
        x = g.node("Add", [x, o], f"residual_{i}")
        x = g.node("Add", [x, g.feed_forward(g.norm(x, f"norm2_{i}"), f"ff_{i}")], f"block_{i}")
        inputs[f"past_{i}"] = TensorProto.FLOAT, [2, "batch", HEADS, "past", SIZE]
        outputs[f"present_{i}"] = [2, "batch", HEADS, "total", SIZE]
    g.node("MatMul", [g.norm(x, "final"), g.weight("head", WIDTH, WORDS, scale=0.5)], "logits")
    return g.model(inputs, outputs)


def encoder(seed: int = 0, *, head: bool = False, positions: int = 0) -> onnx.ModelProto:
    """Return a network of sentences: every word sees the mean of all, and a feed-forward layer.

    Parameters
    ----------
    seed : int
        Seed of the weights.
    head : bool
        Whether it scores words (masked-language head), instead of giving its last hidden state.
    positions : int
        Rows of a table of positions, which a constant row of numbers looks up; 0: no positions.
    """
    g = TokenGraph(seed)
    words = g.node("Gather", [g.weight("words_w", WORDS, WIDTH, scale=1.0), "input_ids"], "words")
    types = g.node("Gather", [g.weight("types_w", 2, WIDTH, scale=0.1), "token_type_ids"], "types")
    zero, one = g.constant("zeros", np.array([0], np.int64)), g.constant("ones", np.array([1], np.int64))
    x = g.node("Add", [words, types], "typed")
    if positions:
        row = g.constant("position_row", np.arange(positions, dtype=np.int64)[None])
        places = g.node("Slice", [row, zero, g.node("Shape", ["input_ids"], "length", start=1), one], "place_row")
        placed = g.node("Gather", [g.weight("places_w", positions, WIDTH, scale=0.1), places], "placed")
        x = g.node("Add", [x, placed], "summed")
    seen = g.node("Cast", ["attention_mask"], "seen", to=TensorProto.FLOAT)
    weights = g.node("Unsqueeze", [seen, g.constant("two", np.array([2], np.int64))], "seen_3d")
    total = g.node("ReduceSum", [g.node("Mul", [x, weights], "weighted"), one], "total")
    mean = g.node("Div", [total, g.node("ReduceSum", [weights, one], "count")], "mean")
    x = g.norm(g.node("Add", [x, mean], "mixed"), "norm")
    x = g.node("Add", [x, g.feed_forward(x, "ff")], "block" if head else "last_hidden_state")
    if head:
        g.node("MatMul", [x, g.weight("head", WIDTH, WORDS)], "logits")
    names = ("input_ids", "attention_mask", "token_type_ids")
    shape: list[Any] = ["batch", "sequence"]
    output = {"logits": [*shape, WORDS]} if head else {"last_hidden_state": [*shape, WIDTH]}
    return g.model(dict.fromkeys(names, (TensorProto.INT64, shape)), output)


def write_tokenizer(path: Path, *, words: int = WORDS) -> Path:
    """Write a byte pair encoding whose first tokens are special, with letters and a merge for every further id.

    Parameters
    ----------
    path : Path
        Where to write it.
    words : int
        Size of the vocabulary.
    """
    letters = "abcdefghij "
    tokens = [*SPECIAL, *letters]
    merges = [[a, b] for a in letters for b in letters][: words - len(tokens)]
    tokens += [a + b for a, b in merges]
    added = [
        {"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, text in enumerate(SPECIAL)
    ]  # fmt: skip
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges,
        },
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path
