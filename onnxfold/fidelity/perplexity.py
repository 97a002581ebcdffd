"""Perplexity of language models on a text.

A text is cut into windows that do not overlap. A model reads a window at once and scores, at every position but the
last, the token that follows: perplexity is exp of the mean negative logarithm of the probabilities it gave to these.
Where the tokenizer begins a text with special tokens, so does every window; these are not scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxfold.errors import ConfigError, VerificationError
from onnxfold.fidelity.continuation import Continuation
from onnxfold.fidelity.measures import FidelityMeter
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.token_inputs import TokenSource, require_tokenizer, tokens_of
from onnxfold.inputs.tokens.feeds import whole_feeds
from onnxfold.inputs.tokens.interface import TokenInterface, token_interface
from onnxfold.inputs.tokens.language_model import LanguageModel
from onnxfold.inputs.tokens.tokenizer import Tokenizer
from onnxfold.progress import Progress, silent
from onnxfold.report import FidelityReport

#: What the progress callback is told.
STAGE = "read text"
#: Windows that are read, and tokens of each, where the user does not say otherwise.
WINDOWS, WINDOW = 24, 1024
_WHICH = ("first", "second")


@dataclass(frozen=True)
class TextRequest:
    """A text to measure perplexity on."""

    path: Path
    tokenizer: Path | None = None  # the tokenizer; by default, the one beside the first model
    window: int = WINDOW
    windows: int = WINDOWS  # windows at most, from the front of the text


def compare_on_text(
    sessions: Sequence[Session], views: Sequence[GraphView], request: TextRequest, beside: object,
    progress: Progress = silent,
) -> FidelityReport:  # fmt: skip
    """Return how close two language models are on a text, with the perplexities of both."""
    read = _Readers(sessions, views, request, beside, progress)
    meter = FidelityMeter(sessions[0].output_names, views[0])
    read.feed(meter)
    report = meter.report(f"windows of {read.windows.shape[1]:,} tokens of '{request.path}'")
    return read.texts.complete(report, meter, str(request.path))


def perplexity_of(session: Session, view: GraphView, request: TextRequest, beside: object) -> tuple[float, int]:
    """Return the perplexity of one language model, and the number of windows; as :func:`compare_on_text`."""
    read, meter = _Readers([session], [view], request, beside, silent), FidelityMeter(session.output_names, view)
    read.feed(meter)
    assert meter.surprise is not None
    return meter.surprise.perplexities[0], len(read.windows)


class _Readers:
    """Models that read the windows of a text."""

    def __init__(
        self, sessions: Sequence[Session], views: Sequence[GraphView], request: TextRequest, beside: object,
        progress: Progress,
    ) -> None:  # fmt: skip
        which = _WHICH if len(sessions) > 1 else ("only",)
        sources = [_source(view, request, name) for view, name in zip(views, which, strict=True)]
        models = [
            LanguageModel(session, source.interface.with_session_types(session.inputs), source.others)
            for session, source in zip(sessions, sources, strict=True)
        ]
        self._scores = [_scores(model, name) for model, name in zip(models, which, strict=True)]
        tokenizer = require_tokenizer(sources[0].tokenizer_of(beside)[0])
        self.windows, front = _windows(sources[0].interface, tokenizer, request)
        self.texts = Continuation(models, views, tokenizer, front, progress)

    def feed(self, meter: FidelityMeter) -> None:
        """Read all windows."""
        for done, ids in enumerate(self.windows):
            self.texts.progress(STAGE, done, len(self.windows))
            feeds = [whole_feeds(model.interface, ids[None], model.others) for model in self.texts.models]
            outputs = [model.session.run(f) for model, f in zip(self.texts.models, feeds, strict=True)]
            for place, values in zip(self._scores, outputs, strict=True):
                if not np.isfinite(values[place]).all():
                    raise VerificationError("the scores of a model are not finite")
            meter.add(outputs[0], outputs[-1], samples=1, following=self.texts.following(feeds[0]))


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


def _windows(interface: TokenInterface, tokenizer: Tokenizer, request: TextRequest) -> tuple[Array, int]:
    """Return windows of ids, shape (windows, length), and how many ids in front of each are given."""
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
