"""Networks of the benchmark: images and signals of the zoo, language models, decoders of onnxruntime-genai."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, cast, get_args

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray

from testing import genai_models
from testing.genai_models import Kind, genai_decoder, genai_feeds
from testing.zoo.export import FORMS, Form, export
from testing.zoo.language import Style
from testing.zoo.lengths import CASES, WORDS, Exporter, LanguageCase, language_case
from testing.zoo.prepare import Entry
from testing.zoo.table import ZOO

Array = NDArray[Any]
Feeds = dict[str, Array]
#: Text that a language model writes takes a minute per file, and changes neither what folds nor what is exact.
Inputs = Literal["dead-leaves", "noise"]
Checked = tuple[Feeds, list[Array]]

#: Both exporters of torch with free lengths; graphs as onnxruntime-genai's builder writes them.
LENGTHS: Final = ("legacy-lengths", "dynamo-lengths")
BUILDER: Final = "builder"


class Case(Protocol):
    """A network: how it is exported, and what it is run on.

    `words` is the size of its vocabulary, 0 without one; `inputs` are those of the fold.
    """

    words: int
    inputs: Inputs

    def export(self, path: Path, form: str) -> str:
        """Write a file; return a note if it is not what was wanted."""

    def checked(self) -> Checked | None:
        """Return inputs and the outputs that torch computes for them; None where there is no torch network."""

    def feeds(self, path: Path, seed: int) -> Feeds:
        """Draw inputs of other lengths."""


@dataclass(frozen=True)
class ZooCase:
    """A network of testing.zoo.table."""

    built: Entry
    words: int = 0
    inputs: Inputs = "dead-leaves"

    def export(self, path: Path, form: str) -> str:
        """Write a file, with a free batch where that goes."""
        module, inputs = self.built
        try:
            export(module, inputs, path, cast(Form, form))
        except Exception as error:
            export(module, inputs, path, cast(Form, form), dynamic_batch=False)
            return f"no export with a free batch ({type(error).__name__}): exported with batch {len(inputs[0])}"
        return ""

    def checked(self) -> Checked:
        """Run torch on the inputs of the export."""
        module, inputs = self.built
        with torch.no_grad():
            result = module(*inputs)
        results = (result,) if isinstance(result, torch.Tensor) else result
        return {f"x{i}": x.numpy() for i, x in enumerate(inputs)}, [r.numpy() for r in results]

    def feeds(self, path: Path, seed: int, batch: int = 3) -> Feeds:
        """Return normal noise, or small integers, of the shapes that a file declares."""
        rng = np.random.default_rng(seed)
        feeds: Feeds = {}
        for info in ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs():
            shape = [d if isinstance(d, int) else batch for d in info.shape]
            floats = info.type == "tensor(float)"
            feeds[info.name] = rng.standard_normal(shape).astype(np.float32) if floats else rng.integers(0, 20, shape)
        return feeds


@dataclass(frozen=True)
class LengthsCase:
    """A network of testing.zoo.lengths."""

    case: LanguageCase
    words: int = WORDS
    inputs: Inputs = "noise"

    def export(self, path: Path, form: str) -> str:
        """Write a file with free lengths."""
        self.case.export(path, cast(Exporter, form.removesuffix("-lengths")))
        return ""

    def checked(self) -> Checked:
        """Run torch on the inputs of the export."""
        with torch.no_grad():
            result = self.case.module(*self.case.inputs.values())
        results = (result,) if isinstance(result, torch.Tensor) else result
        return {name: x.numpy() for name, x in self.case.inputs.items()}, [r.numpy() for r in results]

    def feeds(self, path: Path, seed: int) -> Feeds:
        """Draw tokens, images, sound and caches."""
        return self.case.feeds(3, 6, 4, seed)


@dataclass(frozen=True)
class BuilderCase:
    """A decoder of testing.genai_models."""

    model: onnx.ModelProto
    words: int = genai_models.WORDS
    inputs: Inputs = "noise"

    def export(self, path: Path, form: str) -> str:
        """Write the file."""
        onnx.save(self.model, path)
        return ""

    def checked(self) -> None:
        """There is no torch network."""

    def feeds(self, path: Path, seed: int) -> Feeds:
        """Draw tokens and caches."""
        return genai_feeds(self.model, 1, 6, 4, seed)


def _zoo(name: str) -> Case:
    return ZooCase(ZOO[name]())


def _lengths(name: str, style: Style) -> Case:
    return LengthsCase(language_case(name, style))


def _builder(kind: Kind) -> Case:
    return BuilderCase(genai_decoder(kind))


_STYLES: Final[tuple[Style, ...]] = ("eager", "sdpa")
#: What has a style of its own.
_OWN: Final = "torch_attention"

#: What builds every case, and the forms that it has.
TABLE: Final[dict[str, tuple[Callable[[], Case], tuple[str, ...]]]] = {
    **{name: (partial(_zoo, name), FORMS) for name in ZOO},
    **{f"{n}_{s}": (partial(_lengths, n, s), LENGTHS) for n in CASES if n != _OWN for s in _STYLES},
    _OWN: (partial(_lengths, _OWN, "eager"), LENGTHS),
    "t5_bmm": (partial(_lengths, "t5", "bmm"), LENGTHS),
    **{f"genai_{kind}": (partial(_builder, kind), (BUILDER,)) for kind in get_args(Kind)},
}

ALL_FORMS: Final = (*FORMS, *LENGTHS, BUILDER)
