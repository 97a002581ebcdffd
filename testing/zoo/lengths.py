"""Export of language models with free lengths: batch, sequence, cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from testing.zoo.crossed import T5, Whisper
from testing.zoo.export import silence
from testing.zoo.language import Bert, Gpt2, Llama, Style
from testing.zoo.prepare import draw_weights
from testing.zoo.vision_language import Clip, Swin, TorchEncoder, VisionTower

#: The last one has operators for attention, rotary positions and the root mean square.
Exporter = Literal["legacy", "dynamo", "dynamo-23"]
Axes = Mapping[str, Mapping[int, str]]
Given = dict[str, tuple[Tensor, dict[int, str]]]

_TEXT: Final = {0: "batch", 1: "sequence"}
_CACHE: Final = {0: "batch", 2: "past_sequence"}
#: Entries of every table of words.
WORDS: Final = 50


class LanguageCase:
    """A network with seeded weights, its inputs by name, and their free axes."""

    def __init__(self, module: nn.Module, inputs: Given, outputs: Sequence[str], axes: Axes | None = None) -> None:
        self.module, self.outputs = module.eval(), list(outputs)
        self.inputs = {name: sample for name, (sample, _) in inputs.items()}
        self.axes = {name: free for name, (_, free) in inputs.items()} | dict(axes or {})

    def export(self, path: Path, exporter: Exporter) -> Path:
        """Write one file."""
        common: dict[str, Any] = {"input_names": list(self.inputs), "output_names": self.outputs}
        samples = tuple(self.inputs.values())
        if exporter == "legacy":
            common |= {"dynamo": False, "dynamic_axes": dict(self.axes), "opset_version": 17}
        else:
            free = [dict.fromkeys(self.axes[name], torch.export.Dim.DYNAMIC) for name in self.inputs]
            plain = [name for name in self.inputs if not name.startswith("past")]
            shapes = (*free[: len(plain)], tuple(free[len(plain) :])) if len(plain) < len(free) else tuple(free)
            common |= {"dynamo": True, "dynamic_shapes": shapes, "verbose": False, "external_data": False}
            common |= {"opset_version": 23} if exporter == "dynamo-23" else {}
        with torch.no_grad(), silence():
            torch.onnx.export(self.module, samples, str(path), **common)
        return path

    def feeds(self, batch: int, length: int, past: int, seed: int = 7) -> dict[str, NDArray[Any]]:
        """Draw values for other lengths; the last token of the first sequence is padding."""
        random = np.random.default_rng(seed)
        sizes = {"batch": batch, "images": batch + 1, "sequence": length, "written": past + 1, "past_sequence": past}
        sizes["total_sequence"] = length + past
        values: dict[str, NDArray[Any]] = {}
        for name, sample in self.inputs.items():
            free = self.axes[name]
            shape = [sizes[free[axis]] if axis in free else size for axis, size in enumerate(sample.shape)]
            if sample.dtype == torch.float32:
                values[name] = random.normal(size=shape).astype(np.float32)
            elif name == "attention_mask":
                values[name] = np.ones(shape, np.int64)
                values[name][0, -1] = 0
            else:
                values[name] = random.integers(0, 2 if "type" in name else WORDS, shape)
        return values


def language_case(name: str, style: Style) -> LanguageCase:
    """Build a row of `CASES`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        build, inputs = CASES[name]
        module = build(style)
        draw_weights(module.modules())
        given = inputs()
        if name.endswith("_cached"):
            return _cached(module, given)
        return LanguageCase(module, given, ["logits", "text", "image"] if name == "clip" else ["result"])


def _cached(module: nn.Module, given: Given) -> LanguageCase:
    """Add keys and values of two layers."""
    outputs, axes = ["result"], {}
    given["attention_mask"] = torch.ones(2, 12, dtype=torch.int64), {0: "batch", 1: "total_sequence"}
    for i in range(2):
        for kind in ("key", "value"):
            given[f"past.{i}.{kind}"] = torch.randn(2, 2, 5, 8), _CACHE
            outputs.append(f"present.{i}.{kind}")
            axes[f"present.{i}.{kind}"] = {0: "batch", 2: "total_sequence"}
    return LanguageCase(module, given, outputs, axes)


def _tokens(*names: str) -> Given:
    given: Given = {"input_ids": (torch.randint(WORDS, (2, 7)), _TEXT)}
    if "mask" in names:
        given["attention_mask"] = torch.ones(2, 7, dtype=torch.int64), _TEXT
    if "types" in names:
        given["token_type_ids"] = torch.zeros(2, 7, dtype=torch.int64), _TEXT
    if "sound" in names:
        given = {"input_features": (torch.randn(2, 8, 24), {0: "batch"})}
    if "written" in names:
        given["decoder_input_ids"] = torch.randint(WORDS, (2, 6)), {0: "batch", 1: "written"}
    if "image" in names:
        given["pixel_values"] = torch.randn(3, 3, 16, 16), {0: "images"}
    return given


def _image() -> Given:
    return {"pixel_values": (torch.randn(2, 3, 16, 16), {0: "batch"})}


#: What builds a network, and its inputs.
CASES: Final[dict[str, tuple[Callable[[Style], nn.Module], Callable[[], Given]]]] = {
    "bert": (Bert, partial(_tokens, "mask", "types")),
    "gpt2": (Gpt2, _tokens),
    "llama": (Llama, partial(_tokens, "mask")),
    "llama_cached": (lambda style: Llama(style, cached=True), partial(_tokens, "mask")),
    "qwen2": (lambda style: Llama(style, kind="qwen2"), partial(_tokens, "mask")),
    "qwen3": (lambda style: Llama(style, kind="qwen3"), partial(_tokens, "mask")),
    "qwen3_cached": (lambda style: Llama(style, cached=True, kind="qwen3"), partial(_tokens, "mask")),
    "t5": (T5, partial(_tokens, "mask", "written")),
    "whisper": (Whisper, partial(_tokens, "sound", "written")),
    "vit": (VisionTower, _image),
    "swin": (Swin, _image),
    "torch_attention": (lambda style: TorchEncoder(), lambda: {"vectors": (torch.randn(2, 9, 24), {0: "batch"})}),
    "clip": (Clip, partial(_tokens, "mask", "image")),
}
