"""Export of language models with free lengths: batch, sequence, cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from testing.zoo.export import silence
from testing.zoo.language import Bert, Gpt2, Llama, Style
from testing.zoo.prepare import draw_weights

Exporter = Literal["legacy", "dynamo"]
Axes = Mapping[str, Mapping[int, str]]

_TEXT: Final = {0: "batch", 1: "sequence"}
_CACHE: Final = {0: "batch", 2: "past_sequence"}


class LanguageCase:
    """A network with seeded weights, its inputs by name, and their free axes."""

    def __init__(self, module: nn.Module, inputs: dict[str, Tensor], axes: Axes, outputs: Sequence[str]) -> None:
        self.module, self.inputs, self.axes, self.outputs = module.eval(), inputs, axes, list(outputs)

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
        with torch.no_grad(), silence():
            torch.onnx.export(self.module, samples, str(path), **common)
        return path


def language_case(name: str, style: Style) -> LanguageCase:
    """Build "bert", "gpt2", "llama", or "llama_cached"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = {
            "bert": lambda: Bert(style),
            "gpt2": lambda: Gpt2(style),
            "llama": lambda: Llama(style),
            "llama_cached": lambda: Llama(style, cached=True),
        }[name]()
        draw_weights(module.modules())
        inputs = {"input_ids": torch.randint(50, (2, 7))}
        axes: dict[str, dict[int, str]] = {"input_ids": _TEXT}
        outputs = ["result"]
        if name != "gpt2":
            inputs["attention_mask"] = torch.ones(2, 7, dtype=torch.int64)
            axes["attention_mask"] = _TEXT
        if name == "bert":
            inputs["token_type_ids"] = torch.zeros(2, 7, dtype=torch.int64)
            axes["token_type_ids"] = _TEXT
        if name == "llama_cached":
            inputs["attention_mask"] = torch.ones(2, 12, dtype=torch.int64)
            axes["attention_mask"] = {0: "batch", 1: "total_sequence"}
            for i in range(2):
                for kind in ("key", "value"):
                    inputs[f"past.{i}.{kind}"] = torch.randn(2, 2, 5, 8)
                    axes[f"past.{i}.{kind}"] = _CACHE
                    outputs.append(f"present.{i}.{kind}")
                    axes[f"present.{i}.{kind}"] = {0: "batch", 2: "total_sequence"}
    return LanguageCase(module, inputs, axes, outputs)
