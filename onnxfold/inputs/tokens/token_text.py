"""The choice of token ids without data, with the reason: text that the model writes, its tokenizer's prior, or any."""

from dataclasses import dataclass, replace

import numpy as np

from onnxfold.errors import MemoryLimitError, VerificationError
from onnxfold.files import Cache
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.save import loaded_bytes
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.kept_inputs import InputKind, KeptInputs, Shelf, is_text
from onnxfold.inputs.sample_kinds import FILLED, PRIOR, SAMPLE_KINDS, UNIFORM, WRITTEN
from onnxfold.inputs.tokens.feeds import Others
from onnxfold.inputs.tokens.interface import TokenInterface
from onnxfold.inputs.tokens.language_model import LanguageModel
from onnxfold.inputs.tokens.token_plan import TokenPlan, affordable_readings, affordable_text
from onnxfold.inputs.tokens.tokenizer import Tokenizer
from onnxfold.inputs.tokens.written_text import (
    TEMPERATURES,
    Writing,
    continue_texts,
    fill_in,
    most_varied,
    reread_texts,
    sequences_at_once,
)
from onnxfold.machine import memory
from onnxfold.progress import Progress, silent

_KINDS = tuple(name for name, kind in SAMPLE_KINDS.items() if kind.are_tokens)
#: Sequences that are written for every one that is kept: the most repetitive ones are left out.
_SPARE = 1.125
#: The first tokens of a text, which nothing before them determines.
_FIRST = 2
#: The part of the words of a written text that are drawn by frequency. What a model writes has few subjects and few
#: words; after a drawn word it goes on with another.
_DRAWN = 1 / 6
#: Of the sequences that there is no time to write, the part that the model makes of drawn ids by reading them a few
#: times; the rest is drawn.
_LOOSE, _LOOSE_READINGS = 0.6, 3


@dataclass(frozen=True, eq=False)
class TokenText:
    """Token ids, and where they come from."""

    ids: Array
    kind: str
    reason: str  # how they were made, and why not otherwise

    @property
    def summary(self) -> str:
        """How many there are, and how they were made."""
        count, length = self.ids.shape
        return f"{self.ids.size:,} tokens, {count} sequences of {length}; {self.reason}"


@dataclass(frozen=True, eq=False)
class TokenWriter:
    """Makes token ids for one model."""

    view: GraphView
    interface: TokenInterface
    source: ModelLike | Session | None  # the model that onnxruntime runs; the view where it is not given
    tokenizer: Tokenizer | None
    others: Others  # makes inputs that are not made of tokens

    def text(
        self, plan: TokenPlan, requested: InputRequest, *, cache: Cache | None = None, progress: Progress = silent
    ) -> TokenText:
        """Return ids: what the model writes if it can within the time, else ids by how common they are."""
        known = None if self.tokenizer is None else self.tokenizer.digest
        shelf = Shelf(cache or Cache(), self.view, ("tokens", plan, requested, known))
        ids = InputKind(np.dtype(np.int64), (None, plan.length), 0, self.interface.vocabulary - 1)
        kept = shelf.find({"ids": ids}, {"kind": _KINDS.__contains__, "reason": is_text})
        if kept is not None:
            return TokenText(kept.batches[0]["ids"], kept.facts["kind"], kept.facts["reason"])
        written = self._write(plan, requested, progress)
        shelf.keep(KeptInputs([{"ids": written.ids}], {"kind": written.kind, "reason": written.reason}))
        return written

    def draw(self, plan: TokenPlan, seed: int, why: str) -> TokenText:
        """Return ids drawn one by one, by how common they are where that is known."""
        front, behind = ((), ()) if self.tokenizer is None else self._frame(plan.length)
        ids = self._random((plan.count, plan.length), seed)
        ids[:, : len(front)] = front
        ids[:, plan.length - len(behind) :] = behind
        if self.tokenizer is None:
            rows = f"uniformly below {self.interface.vocabulary:,}, without a tokenizer.json"
            return TokenText(ids, UNIFORM, f"drawn {rows}; {why}")
        return TokenText(ids, PRIOR, f"drawn by their ranks in {self.tokenizer.path.name}; {why}")

    def _write(self, plan: TokenPlan, requested: InputRequest, progress: Progress) -> TokenText:
        seed = requested.seed
        if plan.length <= _FIRST:
            return self.draw(plan, seed, f"sequences of {plan.length} are no text")
        if not self.interface.table.is_known:
            return self.draw(plan, seed, "the table that ids look up was not found, and only the smallest ids are safe")
        try:
            session = self._session()
            model = LanguageModel(session, self.interface.with_session_types(session.inputs), self.others)
            model.require_memory(sequences_at_once(model, plan.length, self._count_with_spare(plan.count)), plan.length)
            if model.scores is None:
                return self.draw(plan, seed, "the model gives no scores of words, so it cannot write")
            if not model.caches and not model.scores_every_position:
                return self.draw(plan, seed, "the model scores whole sequences, so it cannot write")
            if not model.is_causal:
                return self._fill_in(model, plan, requested, progress)
            return self._continue(model, plan, requested, progress)
        except (VerificationError, MemoryError, MemoryLimitError) as error:
            return self.draw(plan, seed, f"the model cannot write: {error}")

    def _continue(
        self, model: LanguageModel, plan: TokenPlan, requested: InputRequest, progress: Progress
    ) -> TokenText:
        seed = requested.seed
        temperatures = ", ".join(f"{t:g}" for t in TEMPERATURES)
        how = f"written by the model at temperatures {temperatures}, one word in {1 / _DRAWN:.0f} drawn by frequency"
        affordable = affordable_text if model.caches else affordable_readings
        most, why = affordable(self.view, plan, requested)
        if not most:
            return self.draw(plan, seed, why)
        whole = most if model.caches else plan.count
        texts, free = self._draw_starts(self._count_with_spare(whole), plan.length, seed)
        writing = Writing(model, self._banned, seed, progress)
        if model.caches:
            ids = continue_texts(writing, texts, free)
        else:
            how = f"{how}, in {most} readings"
            ids = reread_texts(writing, texts, free, most)
        written = most_varied(ids, whole)
        others = self._random((plan.count - whole, plan.length), seed + 2)
        whole_batches = len(others) - len(others) % (self.interface.fixed_batch or 1)
        loose = min(self._multiple(len(others) * _LOOSE), whole_batches)
        if loose and model.scores_every_position:
            free = np.ones((loose, plan.length), bool)
            free[:, 0] = False
            others[:loose] = reread_texts(replace(writing, seed=seed + 2), others[:loose], free, _LOOSE_READINGS)
        # In any order, so that samples that are held out are of all kinds.
        mixed = np.random.default_rng([seed, 3]).permutation(np.concatenate([written, others]))
        rest = f"{loose} drawn and read {_LOOSE_READINGS} times, {len(others) - loose} drawn by frequency"
        return TokenText(mixed, WRITTEN, f"{len(written)} sequences {how}, {rest}" if len(others) else how)

    def _fill_in(self, model: LanguageModel, plan: TokenPlan, requested: InputRequest, progress: Progress) -> TokenText:
        seed = requested.seed
        blank = None if self.tokenizer is None else self.tokenizer.blank
        readings, why = affordable_readings(self.view, plan, requested)
        if blank is None or blank >= self.interface.vocabulary or not readings:
            return self.draw(plan, seed, why or "no tokenizer.json says what a blank is")
        starts = self.draw(plan, seed, "").ids
        front, behind = self._frame(plan.length)
        inner = slice(len(front), plan.length - len(behind))
        ids = fill_in(Writing(model, self._banned, seed, progress), starts, inner, blank)
        return TokenText(ids, FILLED, "blanks filled in by the model, every position twice")

    def _session(self) -> Session:
        if isinstance(self.source, Session):
            return self.source
        memory.require(loaded_bytes(self.view), "the model as a whole")
        return Session(self.view) if self.source is None else Session(self.source, counted=self.view)

    def _count_with_spare(self, count: int) -> int:
        return self._multiple(np.ceil(count * _SPARE))

    def _multiple(self, count: float) -> int:
        """Return a number of sequences that whole batches hold, at least so many."""
        fixed = self.interface.fixed_batch or 1
        return -(-int(np.ceil(count)) // fixed) * fixed

    def _draw_starts(self, count: int, length: int, seed: int) -> tuple[Array, Array]:
        """Return drawn ids, half of them with a first one as texts have it, and the places that the model writes."""
        texts = self._random((count, length), seed + 1)
        known = () if self.tokenizer is None else self.tokenizer.beginnings
        begins = [i for i in known if i < self.interface.vocabulary]
        if begins:
            texts[::2, 0] = np.resize(begins, len(texts[::2]))
        free = np.random.default_rng([seed, 4]).random(texts.shape) >= _DRAWN
        free[:, :_FIRST] = False
        return texts, free

    def _random(self, shape: tuple[int, int], seed: int) -> Array:
        random, rows = np.random.default_rng([seed, 2]), self.interface.vocabulary
        if self.tokenizer is None:
            return random.integers(0, rows, shape)
        ids: Array = random.choice(rows, shape, p=self.tokenizer.prior(rows))
        return ids

    def _frame(self, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the special ids around every sequence, where there is room for them."""
        assert self.tokenizer is not None
        front, behind = self.tokenizer.frame
        fits = len(front) + len(behind) < length and all(i < self.interface.vocabulary for i in (*front, *behind))
        return (front, behind) if fits else ((), ())

    @property
    def _banned(self) -> Array:
        banned = np.zeros(self.interface.vocabulary, bool)
        special = () if self.tokenizer is None else self.tokenizer.special
        banned[[i for i in special if i < len(banned)]] = True
        return banned if not banned.all() else np.zeros_like(banned)
