"""Losses of two networks that continue texts: on the tokens that follow in a text, and in texts that they write.

For the perplexity on a text, it is cut into windows that do not overlap. A model reads a window at once and scores, at
every position but the last, the token that follows: perplexity is exp of the mean negative logarithm of the
probabilities it gave to these. Where the tokenizer begins a text with special tokens, so does every window; these are
not scored.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.errors import ConfigError, MemoryLimitError, OnnxFoldError, VerificationError
from onnxfold.fidelity.measures import FidelityMeter
from onnxfold.graph.run.session import Feeds, Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.token_inputs import TokenSource, framed_rows, require_tokenizer, tokens_of
from onnxfold.inputs.tokens.interface import Purpose, TokenInterface, token_interface, whole_feeds
from onnxfold.inputs.tokens.language_model import LanguageModel, variety, write_greedily
from onnxfold.inputs.tokens.tokenizer import Tokenizer, banned_ids
from onnxfold.progress import Progress, silent
from onnxfold.report import FidelityReport
from onnxfold.report.closeness import PerplexityRecord

#: Texts that each network writes greedily, tokens that it is shown of each, and tokens that it writes.
TEXTS, SHOWN, WRITTEN = 20, 8, 128
#: Multiply-accumulates that writing may take, both networks together: about a minute on two cores.
WRITING_COST = 1.5e12
_BITS = np.log(2.0)


def continuing_model(session: object, view: GraphView) -> LanguageModel | None:
    """Return a network as one that continues texts; None where it does not."""
    interface = token_interface(view)
    if not isinstance(session, Session) or interface is None or interface.ids is None or len(interface.ids.shape) != 2:
        return None
    model = TokenSource(view, interface).model(session)
    with suppress(VerificationError, MemoryError, MemoryLimitError):  # then the trial on a few ids does not run
        return model if model.scores is not None and model.scores_every_position and model.is_causal else None
    return None


@dataclass(eq=False)
class Continuation:
    """Two networks that continue texts, and the texts that they have read."""

    models: Sequence[LanguageModel]
    views: Sequence[GraphView]
    tokenizer: Tokenizer | None = None
    front: int = 0  # ids in front of every text that are no part of it
    progress: Progress = silent
    writes: bool = True  # whether the networks write texts, too
    _texts: list[Array] = field(default_factory=list)

    def following(self, feeds: Feeds) -> Array:
        """Take a batch; return the token that follows each position, shape (texts, length), -1 where none counts."""
        interface = self.models[0].interface
        assert interface.ids is not None
        ids = feeds[interface.ids.name]
        masks = [feeds[info.name] for info in interface.inputs_for(Purpose.MASK) if info.name in feeds]
        real = np.ones(ids.shape, bool)
        for mask in masks:
            real &= mask != 0 if mask.shape == ids.shape else True
        self._texts += [row[seen] for row, seen in zip(ids, real, strict=True)]
        following = np.full(ids.shape, -1, np.int64)
        following[:, :-1] = np.where(real[:, :-1] & real[:, 1:], ids[:, 1:], -1)
        following[:, : max(self.front - 1, 0)] = -1
        return following

    def complete(self, report: FidelityReport, meter: FidelityMeter, text: str) -> FidelityReport:
        """Return the report with the perplexities on the texts so far, and with how often greedy texts loop."""
        surprise = meter.surprise
        if surprise is None:
            return report
        a, b = surprise.perplexities
        record = PerplexityRecord(
            a, b, len(self._texts), max(map(len, self._texts)), surprise.tokens, text, surprise.ratio_error
        )
        size = self._scored_bytes()
        if size:
            first, second = (total / _BITS / size for total in surprise.totals)
            record = replace(record, bits_per_byte=(float(first), float(second)))
        why, notes = self._why_not_written() if self.writes else "", list(report.notes)
        if self.writes and not why:
            try:
                record = replace(record, repeated=self._loop_rates())
            except (VerificationError, MemoryError, MemoryLimitError) as error:
                why = f"a model cannot write: {error}"
        notes += [f"the loop rate of greedy texts was not measured: {why}"] if why else []
        return replace(report, perplexity=record, notes=notes)

    def _scored_bytes(self) -> int:
        """Return of how many bytes the tokens are that were predicted; 0 where that is not known."""
        if self.tokenizer is None:
            return 0
        with suppress(OnnxFoldError):  # a fold needs no package that decodes
            shown = [text[: max(self.front, 1)] for text in self._texts]
            return self.tokenizer.byte_count(self._texts) - self.tokenizer.byte_count(shown)
        return 0

    def _why_not_written(self) -> str:
        """Return why no texts are written; empty where they are."""
        length = self.front + SHOWN + WRITTEN
        if any(model.interface.length(length) < length for model in self.models):
            return f"a sequence holds fewer than {length} tokens"
        if all(len(text) < self.front + SHOWN for text in self._texts):
            return f"no text has {SHOWN} tokens to begin with"
        costs = [float(count_token_macs(view)) * TEXTS * length for view in self.views]
        costs = [c * (1 if model.caches else WRITTEN) for c, model in zip(costs, self.models, strict=True)]
        if sum(costs) > WRITING_COST:
            return f"it would take {sum(costs):.2g} multiply-accumulates, more than {WRITING_COST:.2g}"
        return ""

    def _loop_rates(self) -> tuple[float, float]:
        rates = []
        for session, view in zip((model.session for model in self.models), self.views, strict=True):
            compared, session.output_names = session.output_names, list(view.output_names)
            try:  # caches may be no part of a comparison
                model = continuing_model(session, view)
                assert model is not None
                rates.append(self._loop_rate(model))
            finally:
                session.output_names = compared
        return rates[0], rates[1]

    def _loop_rate(self, model: LanguageModel) -> float:
        """Return the share of 4-grams that came before in the same text, of the mean greedy text."""
        fixed = model.interface.fixed_batch or 1
        starts = self._beginnings(-(-TEXTS // fixed) * fixed)
        banned = banned_ids(self.tokenizer, model.interface.vocabulary)
        model.require_memory(len(starts), starts.shape[1] + WRITTEN)
        return float(1.0 - variety(write_greedily(model, banned, starts, WRITTEN, self.progress)[:TEXTS]).mean())

    def _beginnings(self, count: int) -> Array:
        """Return where texts begin, and places at equal distances in them where they are few."""
        rows = [text[self.front :] for text in self._texts if len(text) >= self.front + SHOWN]
        each = -(-count // len(rows))
        places = [row[(len(row) - SHOWN) * i // each :][:SHOWN] for i in range(each) for row in rows][:count]
        front = np.broadcast_to(self._texts[0][: self.front], (count, self.front))
        return np.concatenate([front, np.stack(places)], axis=1).astype(np.int64)


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


def read_windows(
    sessions: Sequence[Session], views: Sequence[GraphView], request: TextRequest, beside: object, progress: Progress
) -> tuple[Continuation, FidelityMeter, Array]:
    """Let one model or two read the windows of a text."""
    models: list[LanguageModel] = []
    places: list[int] = []  # of the outputs with scores
    for session, view, which in zip(sessions, views, _WHICH if len(views) > 1 else ("only",), strict=True):
        interface = token_interface(view)
        if interface is None:
            raise ConfigError(
                f"perplexity is for language models, and the {which} model takes no tokens: leave out --text"
            )
        model = TokenSource(view, interface).model(session)
        if model.scores is None or not model.is_causal:
            what = "gives no scores of words" if model.scores is None else "reads what follows a word"
            raise ConfigError(
                f"perplexity is for models that continue a text, and the {which} {what}: leave out --text"
            )
        models.append(model)
        places.append(model.scores)
    source = TokenSource(views[0], models[0].interface, tokenizer=request.tokenizer, beside=beside)
    tokenizer = require_tokenizer(source.known)
    windows, front = _windows(source.interface, tokenizer, request)
    texts = Continuation(models, views, tokenizer, front, progress)
    meter = FidelityMeter(sessions[0].output_names, views[0])
    for done, ids in enumerate(windows):
        progress(STAGE, done, len(windows))
        feeds = [whole_feeds(model.interface, ids[None], model.others) for model in models]
        outputs = [model.session.run(f) for model, f in zip(models, feeds, strict=True)]
        if not all(np.isfinite(values[place]).all() for place, values in zip(places, outputs, strict=True)):
            raise VerificationError("the scores of a model are not finite")
        meter.add(outputs[0], outputs[-1], samples=1, following=texts.following(feeds[0]))
    return texts, meter, windows


def _windows(interface: TokenInterface, tokenizer: Tokenizer, request: TextRequest) -> tuple[Array, int]:
    """Return windows of ids, shape (windows, length), and how many ids in front of each are given."""
    front = [i for i in tokenizer.frame[0] if interface.knows(np.array([i]))]
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
    return framed_rows(ids, (count, inner), front), len(front)
