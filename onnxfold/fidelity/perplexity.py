"""Perplexity of language models on a text.

A text is cut into windows that do not overlap. A model reads a window at once and scores, at every position but the
last, the token that follows: perplexity is exp of the mean negative logarithm of the probabilities it gave to these.
Where the tokenizer begins a text with special tokens, so does every window; these are not scored.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxfold.errors import ConfigError, VerificationError
from onnxfold.fidelity.measures import FidelityMeter
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.token_inputs import TokenSource, require_tokenizer, tokens_of
from onnxfold.inputs.tokens.answers import log_softmax
from onnxfold.inputs.tokens.feeds import whole_feeds
from onnxfold.inputs.tokens.interface import token_interface
from onnxfold.inputs.tokens.language_model import LanguageModel
from onnxfold.progress import Progress, silent
from onnxfold.report import FidelityReport, PerplexityRecord

#: What the progress callback is told.
STAGE = "read text"
#: Windows that are read, and tokens of each, where the user does not say otherwise.
WINDOWS, WINDOW = 24, 1024
#: Positions whose probabilities are computed at a time.
_TOGETHER = 256
_WHICH = ("first", "second")


@dataclass(frozen=True)
class TextRequest:
    """A text to measure perplexity on."""

    path: Path
    tokenizer: Path | None = None  # the tokenizer; by default, the one beside the first model
    window: int = WINDOW
    windows: int = WINDOWS  # windows at most, from the front of the text


@dataclass
class _Surprise:
    """Negative logarithms of probabilities, added up over windows."""

    total: float = 0.0
    tokens: int = 0

    def add(self, scores: Array, ids: Array, first: int) -> None:
        """Take the scores of one window, shape (length, vocabulary), and its ids; those before `first` are given."""
        total = 0.0
        for begin in range(max(first - 1, 0), len(ids) - 1, _TOGETHER):
            end = min(begin + _TOGETHER, len(ids) - 1)
            logs = log_softmax(scores[begin:end])
            total -= float(logs[np.arange(end - begin), ids[begin + 1 : end + 1]].sum())
        self.total += total
        self.tokens += len(ids) - 1 - max(first - 1, 0)

    @property
    def perplexity(self) -> float:
        """Exp of the mean; infinite where that is too large for a number."""
        try:
            return math.exp(self.total / self.tokens)
        except OverflowError:
            return math.inf


def compare_on_text(
    sessions: Sequence[Session], views: Sequence[GraphView], request: TextRequest, beside: object,
    progress: Progress = silent,
) -> tuple[FidelityReport, PerplexityRecord]:  # fmt: skip
    """Return how close two language models are on a text, and the perplexities of both."""
    readers = [_Reader(s, v, request, which) for s, v, which in zip(sessions, views, _WHICH, strict=True)]
    windows, front = _windows(readers[0].source, request, beside)
    meter = FidelityMeter(sessions[0].output_names)
    for done, ids in enumerate(windows):
        progress(STAGE, done, len(windows))
        meter.add(*(reader.read(ids, front) for reader in readers), samples=1)
    count, length = windows.shape
    a, b = (reader.surprise for reader in readers)
    record = PerplexityRecord(a.perplexity, b.perplexity, count, length, a.tokens, str(request.path))
    return meter.report(f"windows of {length:,} tokens of '{request.path}'"), record


def perplexity_of(session: Session, view: GraphView, request: TextRequest, beside: object) -> tuple[float, int]:
    """Return the perplexity of one language model, and the number of windows; as :func:`compare_on_text`."""
    reader = _Reader(session, view, request, "only")
    windows, front = _windows(reader.source, request, beside)
    for ids in windows:
        reader.read(ids, front)
    return reader.surprise.perplexity, len(windows)


class _Reader:
    """One model that reads windows."""

    def __init__(self, session: Session, view: GraphView, request: TextRequest, which: str) -> None:
        self.source = _source(view, request, which)
        interface = self.source.interface.with_session_types(session.inputs)
        self._model = LanguageModel(session, interface, self.source.others)
        self._scores = _scores(self._model, which)
        self.surprise = _Surprise()

    def read(self, ids: Array, front: int) -> list[Array]:
        """Take one window, and return all outputs."""
        outputs = self._model.session.run(whole_feeds(self._model.interface, ids[None], self._model.others))
        self.surprise.add(_finite(outputs[self._scores])[0], ids, front)
        return outputs


def _source(view: GraphView, request: TextRequest, which: str) -> TokenSource:
    interface = token_interface(view)
    if interface is None:
        raise ConfigError(f"perplexity is for language models, and the {which} model takes no tokens: leave out --text")
    return TokenSource(view, interface, tokenizer=request.tokenizer)


def _scores(model: LanguageModel, which: str) -> int:
    place = model.scores
    if place is None or not model.is_causal:
        what = "gives no scores of words" if place is None else "reads what follows a word"
        raise ConfigError(f"perplexity is for models that continue a text, and the {which} {what}: leave out --text")
    return place


def _windows(source: TokenSource, request: TextRequest, beside: object) -> tuple[Array, int]:
    """Return windows of ids, shape (windows, length), and how many ids in front of each are given."""
    tokenizer = require_tokenizer(source.tokenizer_of(beside)[0])
    interface = source.interface
    front = np.array([i for i in tokenizer.frame[0] if interface.knows(np.array([i]))], np.int64)
    length = interface.length(request.window)
    inner = length - len(front)
    if inner < 2 - bool(len(front)):
        raise ConfigError(f"a window of {length} tokens holds nothing to predict: give a longer --window")
    ids = tokens_of(request.path, tokenizer, interface, most=request.windows * inner)
    count = len(ids) // inner
    if not count:
        raise ConfigError(
            f"'{request.path}' holds {len(ids):,} tokens, less than one window of {length:,}: give a smaller --window"
        )
    rows = ids[: count * inner].reshape(count, inner)
    return np.concatenate([np.broadcast_to(front, (count, len(front))), rows], axis=1), len(front)


def _finite(scores: Array) -> Array:
    if not np.isfinite(scores).all():
        raise VerificationError("the scores of a model are not finite")
    return scores
