"""The models that are measured: what continues texts, and what reads sentences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from benchmarks.language_models.text import REFERENCE, Ids, halves, reference, sentences
from onnxfold.fidelity.continuation import TextRequest, read_windows
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import Session
from onnxfold.inputs.tokens.tokenizer import Tokenizer, read_tokenizer
from onnxfold.progress import silent

Scores = Mapping[str, Mapping[str, float]]

#: Tokens of a sentence at most, special ones included.
_MOST_TOKENS = 256


@dataclass(frozen=True)
class Subject(ABC):
    """A model.

    Parameters
    ----------
    path : Path
        A file, or a folder as onnxruntime-genai or optimum take it; tokenizer.json lies in it or beside it.
    name : str
        Name in the table.
    text : Path
        The text to judge by.
    windows : int
        Windows of it that a decoder reads; of the other text, two fifths as many.
    front : tuple of int
        Windows, and tokens of each, that a fold may be shown.
    """

    path: Path
    name: str
    text: Path
    windows: int
    front: tuple[int, int] = field(kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> str:
        """Kind of rows."""

    @abstractmethod
    def judged(self, folded: Path) -> Scores:
        """Return what is left in a folded model, by text."""

    @property
    def model(self) -> Path:
        """The model's file."""
        return self.path / "model.onnx" if self.path.is_dir() else self.path

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return read_tokenizer(self.model.parent / "tokenizer.json")

    @cached_property
    def _halves(self) -> tuple[Ids, str]:
        return halves(self.text, self.tokenizer, *self.front)

    def given(self, *, on_text: bool) -> dict[str, Any]:
        """Return the options of a fold that is shown the front of the text, or nothing."""
        return {"calibration": {"input_ids": self._halves[0]}} if on_text else {}

    def texts(self) -> dict[str, str]:
        """Return the texts to judge by, by name; no fold has seen them."""
        return {self.text.name.split(".")[0]: self._halves[1], REFERENCE: reference()}


class Decoder(Subject):
    """A model that continues texts, judged by its perplexity."""

    kind = "decoder"

    def judged(self, folded: Path) -> Scores:
        """Return perplexities before and after."""
        found = {}
        for name, (before, windows) in self._before.items():
            after = self._perplexity(folded, name)[0]
            found[name] = {"before": before, "after": after, "ratio": after / before, "windows": float(windows)}
        return found

    @cached_property
    def _before(self) -> dict[str, tuple[float, int]]:
        """The original's perplexity on every text, and the number of windows; it takes as long as a small fold."""
        return {name: self._perplexity(self.model, name) for name in self.texts()}

    def _perplexity(self, model: Path, name: str) -> tuple[float, int]:
        windows = self.windows if name != REFERENCE else max(2 * self.windows // 5, 1)
        view = load(model)
        with TemporaryDirectory() as place:
            text = Path(place) / "text.txt"
            text.write_text(self.texts()[name], encoding="utf-8")
            request = TextRequest(text, self.tokenizer.path, windows=windows)
            _, meter, windows = read_windows([Session(model, counted=view)], [view], request, model, silent)
        assert meter.surprise is not None
        return meter.surprise.perplexities[0], len(windows)


class Encoder(Subject):
    """A model that reads sentences, judged by how it compares them."""

    kind = "encoder"

    def judged(self, folded: Path) -> Scores:
        """Return the part of the sentences whose nearest one stays, and the rank correlation of all similarities."""
        found = {}
        for name, whole in self._whole.items():
            a, b = (vectors @ vectors.T for vectors in (whole, self._vectors(folded, name)))
            pairs = np.triu_indices(len(a), 1)
            rank = float(spearmanr(a[pairs], b[pairs])[0])
            for similarities in (a, b):
                np.fill_diagonal(similarities, -np.inf)
            kept = float((a.argmax(axis=1) == b.argmax(axis=1)).mean())
            found[name] = {"kept": kept, "rank": rank, "sentences": float(len(a))}
        return found

    @cached_property
    def _ids(self) -> dict[str, list[Ids]]:
        front, behind = self.tokenizer.frame
        most = _MOST_TOKENS - len(front) - len(behind)
        return {
            name: [
                np.concatenate([front, self.tokenizer.ids(s)[:most], behind]).astype(np.int64) for s in sentences(text)
            ]
            for name, text in self.texts().items()
        }

    @cached_property
    def _whole(self) -> dict[str, npt.NDArray[np.float64]]:
        return {name: self._vectors(self.model, name) for name in self._ids}

    def _vectors(self, model: Path, name: str) -> npt.NDArray[np.float64]:
        """Return the mean of the states of every sentence, brought to length one."""
        session, found = Session(model), []
        for ids in self._ids[name]:
            values = {"mask": np.ones_like(ids[None]), "type": np.zeros_like(ids[None]), "input_ids": ids[None]}
            feeds = {info.name: next(v for k, v in values.items() if k in info.name) for info in session.inputs}
            mean = session.run(feeds)[0][0].mean(axis=0).astype(np.float64)
            found.append(mean / np.linalg.norm(mean))
        return np.array(found)
