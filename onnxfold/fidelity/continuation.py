"""Losses of two networks that continue texts: on the tokens that follow in a text, and in texts that they write."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.errors import MemoryLimitError, OnnxFoldError, VerificationError
from onnxfold.fidelity.measures import FidelityMeter
from onnxfold.graph.run.session import Feeds, Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.token_inputs import TokenSource
from onnxfold.inputs.tokens.interface import Purpose, token_interface
from onnxfold.inputs.tokens.language_model import LanguageModel
from onnxfold.inputs.tokens.tokenizer import Tokenizer
from onnxfold.inputs.tokens.written_text import sequences_at_once, variety, write_greedily
from onnxfold.progress import Progress, silent
from onnxfold.report import FidelityReport, PerplexityRecord

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
    model = LanguageModel(session, interface.with_session_types(session.inputs), TokenSource(view, interface).others)
    with suppress(VerificationError, MemoryError, MemoryLimitError):  # then the trial on a few ids does not run
        return model if model.scores is not None and model.scores_every_position and model.is_causal else None
    return None


@dataclass(eq=False)
class Continuation:
    """Two networks that continue texts, and the texts that they have read.

    Attributes
    ----------
    front : int
        Ids in front of every text that are no part of it.
    writes : bool
        Whether the networks write texts, too.
    """

    models: Sequence[LanguageModel]
    views: Sequence[GraphView]
    tokenizer: Tokenizer | None = None
    front: int = 0
    progress: Progress = silent
    writes: bool = True
    _texts: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, sessions: Sequence[object], views: Sequence[GraphView], progress: Progress) -> "Continuation | None":
        """Return two networks as such; None where one of them does not continue texts."""
        models = [m for s, v in zip(sessions, views, strict=True) if (m := continuing_model(s, v)) is not None]
        return cls(models, views, progress=progress) if len(models) == len(sessions) else None

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
        banned = np.zeros(model.interface.vocabulary, bool)
        banned[[i for i in (self.tokenizer.special if self.tokenizer is not None else ()) if i < len(banned)]] = True
        length = starts.shape[1] + WRITTEN
        model.require_memory(sequences_at_once(model, length, len(starts)), length)
        return float(1.0 - variety(write_greedily(model, banned, starts, WRITTEN, self.progress)[:TEXTS]).mean())

    def _beginnings(self, count: int) -> Array:
        """Return where texts begin, and places at equal distances in them where they are few."""
        rows = [text[self.front :] for text in self._texts if len(text) >= self.front + SHOWN]
        each = -(-count // len(rows))
        places = [row[(len(row) - SHOWN) * i // each :][:SHOWN] for i in range(each) for row in rows][:count]
        front = np.broadcast_to(self._texts[0][: self.front], (count, self.front))
        return np.concatenate([front, np.stack(places)], axis=1).astype(np.int64)
