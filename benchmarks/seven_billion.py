"""A decoder of the shape of Llama-2-7B, random in float16, as onnxruntime-genai's builder writes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

#: Width of the stream, of feed-forward layers and of heads, heads, words, layers of the whole model.
WIDTH, INNER, SIZE, HEADS, WORDS, LAYERS = 4096, 11008, 128, 32, 32000, 32
_LONGEST = 4096
_MICROSOFT = "com.microsoft"
_FLOAT = TensorProto.FLOAT16


class _Decoder:
    """Nodes and tensors; large weights go straight to a file."""

    def __init__(self, data: IO[bytes], scale: int) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.tensors: list[TensorProto] = []
        self._data = data
        self.width, self.inner, self.heads = WIDTH // scale, INNER // scale, HEADS // scale
        self.words = WORDS // scale

    def weight(self, name: str, rows: int, columns: int, deviation: float) -> str:
        """Write a random matrix, whose columns differ in size as those of trained ones do."""
        start = self._data.tell()
        lengths = np.exp(0.5 * self.random.standard_normal(columns, np.float32)) * np.float32(deviation)
        for begin in range(0, rows, 1024):
            part = self.random.standard_normal((min(1024, rows - begin), columns), np.float32)
            (part * lengths).astype(np.float16).tofile(self._data)
        tensor = TensorProto(name=name, dims=[rows, columns], data_type=_FLOAT, data_location=TensorProto.EXTERNAL)
        where = {"location": "model.onnx.data", "offset": start, "length": self._data.tell() - start}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name

    def constant(self, name: str, values: Any) -> str:
        self.tensors.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, outputs, f"/{outputs[0]}", **attributes))
        return outputs[0]

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        return self.node("MatMul", [x, self.weight(f"{name}.weight", rows, columns, rows**-0.5)], name)

    def norm(self, x: str, y: str, name: str) -> tuple[str, str]:
        """Return the norm of a sum, and the sum."""
        scale = self.constant(f"{name}.weight", np.ones(self.width, np.float16))
        self.node("SkipSimplifiedLayerNormalization", [x, y, scale], name, "", "", f"{name}.sum", domain=_MICROSOFT,
                  epsilon=1e-5)  # fmt: skip
        return name, f"{name}.sum"

    def layer(self, i: int, normed: str, x: str) -> tuple[str, str]:
        at, wide = f"layers.{i}", self.width
        parts = [self.linear(normed, f"{at}.{name}_proj", wide, wide) for name in "qkv"]
        past = [f"past_key_values.{i}.{name}" for name in ("key", "value")]
        present = [f"present.{i}.{name}" for name in ("key", "value")]
        self.node(
            "GroupQueryAttention", [*parts, *past, "lengths", "total", "cos_cache", "sin_cache"], f"{at}.attention",
            *present, domain=_MICROSOFT, num_heads=self.heads, kv_num_heads=self.heads, do_rotary=1, scale=SIZE**-0.5,
        )  # fmt: skip
        normed, x = self.norm(x, self.linear(f"{at}.attention", f"{at}.o_proj", wide, wide), f"{at}.middle_norm")
        gate, up = (self.linear(normed, f"{at}.{name}_proj", wide, self.inner) for name in ("gate", "up"))
        active = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{at}.sigmoid")], f"{at}.active")
        down = self.linear(self.node("Mul", [active, up], f"{at}.gated"), f"{at}.down_proj", self.inner, wide)
        return self.norm(x, down, f"{at}.last_norm")


def write_decoder(folder: Path, layers: int, scale: int = 1) -> Path:
    """Write a decoder with caches.

    Parameters
    ----------
    folder : Path
        Where to.
    layers : int
        How many of the 32 layers.
    scale : int
        Every width is so many times smaller than Llama's.
    """
    with (folder / "model.onnx.data").open("wb") as data:
        g = _Decoder(data, scale)
        angles = np.outer(np.arange(_LONGEST), 1e4 ** (-np.arange(SIZE // 2) / (SIZE // 2)))
        g.constant("cos_cache", np.cos(angles).astype(np.float16))
        g.constant("sin_cache", np.sin(angles).astype(np.float16))
        mask = g.node("Cast", ["attention_mask"], "mask", to=TensorProto.INT32)
        counted = g.node("ReduceSum", [mask, g.constant("axis", np.array([1]))], "counted", keepdims=0)
        g.node("Sub", [counted, g.constant("one", np.array(1, np.int32))], "lengths")
        shape = g.node("Shape", ["attention_mask"], "mask_shape")
        whole = g.node("Gather", [shape, g.constant("second", np.array(1))], "total64")
        g.node("Cast", [whole], "total", to=TensorProto.INT32)
        x = g.node("Gather", [g.weight("embed_tokens.weight", g.words, g.width, 1.0), "input_ids"], "embedded")
        scale_of = g.constant("first_norm.weight", np.ones(g.width, np.float16))
        normed = g.node("SimplifiedLayerNormalization", [x, scale_of], "first_norm", axis=-1, epsilon=1e-5)
        for i in range(layers):
            normed, x = g.layer(i, normed, x)
        g.linear(normed, "logits", g.width, g.words)
    cache, length = ["batch", g.heads, "past", SIZE], ["batch", "length"]
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, length)]
    inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total_length"]))
    outputs = [helper.make_tensor_value_info("logits", _FLOAT, [*length, g.words])]
    for i in range(layers):
        for name in ("key", "value"):
            inputs.append(helper.make_tensor_value_info(f"past_key_values.{i}.{name}", _FLOAT, cache))
            present = ["batch", g.heads, "total_length", SIZE]
            outputs.append(helper.make_tensor_value_info(f"present.{i}.{name}", _FLOAT, present))
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return path
