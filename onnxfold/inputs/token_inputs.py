"""The inputs of a language model: tokens of a user, or made without data, and all others consistent with them.

Without data a model writes text, if it can within the time; else ids are drawn by how common the tokenizer says they
are, or evenly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.errors import ConfigError, MemoryLimitError, VerificationError
from onnxfold.files import Cache
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.files.save import loaded_bytes
from onnxfold.graph.run.session import InputInfo, Session
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images import synthetic
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.kept_inputs import Shelf, is_text
from onnxfold.inputs.sample_kinds import DATA, FILLED, PRIOR, SAMPLE_KINDS, UNIFORM, WRITTEN
from onnxfold.inputs.tokens import language_model, token_plan
from onnxfold.inputs.tokens.answers import TokenAnswers, TokenFacts
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.interface import Others, TokenInput, TokenInterface, whole_feeds
from onnxfold.inputs.tokens.language_model import LanguageModel, Writing, reread_texts
from onnxfold.inputs.tokens.token_plan import TokenPlan
from onnxfold.inputs.tokens.tokenizer import NAME, Tokenizer, banned_ids, find_tokenizer, frequencies, read_text
from onnxfold.machine import memory
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Batches

#: Ending of the name of a text.
TEXT = ".txt"
#: Bytes of scores in one batch.
_BATCH_BYTES = 128 << 20
_LARGEST_BATCH = 16
#: Sequences, and positions of each, for what runs the network once per group, all groups side by side: the scores of
#: all words take most of the memory.
_SHORT = 4, 32
#: The same of text that the model wrote: it has many subjects, and more of it tells more. Of given text, more of it
#: fits the model to the subject, and other texts lose. There are as many sequences as one run of some cost, in
#: multiply-accumulates, can read, and at least some.
_LONGER, _LONGER_COST, _FEWEST_LONGER = (8, 64), 1e11, 2
#: Bytes of a text per token at most: no more of a long file is read.
_TOKEN_BYTES = 32

_KINDS = tuple(name for name, kind in SAMPLE_KINDS.items() if kind.are_tokens)
#: The first tokens of a text, which nothing before them determines.
_FIRST = 2
#: Of the sequences that there is no time to write, the part that the model makes of drawn ids by reading them a few
#: times; the rest is drawn.
_LOOSE, _LOOSE_READINGS = 0.6, 3


@dataclass(frozen=True, eq=False)
class TokenText:
    """Token ids, and where they come from."""

    ids: Array
    kind: str
    reason: str  # how they were made, and why not otherwise
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class TokenSource:
    """Where tokens for a model may come from."""

    view: GraphView
    interface: TokenInterface
    source: ModelLike | Session | None = None  # the model that onnxruntime runs; the view where it is not given
    #: The user's tokenizer file; else the one beside the model is taken, if there is one.
    tokenizer: str | PathLike[str] | None = None
    seed: int = 0  # seed of inputs that are not made of tokens
    beside: object = None  # the file beside which a tokenizer may lie, where it is not the source

    def __post_init__(self) -> None:
        # The tokenizer, and a note if one beside the model cannot be read.
        self.known, self.notes = find_tokenizer(self.tokenizer, self.source if self.beside is None else self.beside)

    def make_text(
        self, requested: InputRequest, *, cache: Cache | None = None, any_ids: bool = False,
        tokens: int = token_plan.TOKENS, progress: Progress = silent,
    ) -> TokenText:  # fmt: skip
        """Return token ids without data."""
        plan = token_plan.planned_tokens(self.view, self.interface, requested, tokens=tokens)
        if any_ids:
            text = self.draw(plan, requested.seed, "requested", any_ids=True)
        else:
            text = self.text(plan, requested, cache=cache, progress=progress)
        return replace(text, notes=(*self.notes, *plan.notes))

    def read_text(self, path: Path, requested: InputRequest) -> TokenText:
        """Return the ids of the front of a text, in sequences."""
        plan = token_plan.planned_tokens(self.view, self.interface, requested, text=token_plan.GIVEN_TEXT)
        tokenizer = require_tokenizer(self.known)
        front, behind = tokenizer.frame
        length = plan.length - len(front) - len(behind)
        ids = tokens_of(path, tokenizer, self.interface, most=plan.count * length)
        if self.interface.fixed_length is None:
            length = min(length, len(ids))
        count = len(ids) // length if length > 0 else 0
        batch = self.interface.fixed_batch or 1
        count = count // batch * batch
        if not count:
            raise ConfigError(f"'{path}' holds {len(ids)} tokens, too few for the model's inputs: give a longer text")
        return TokenText(framed_rows(ids, (count, length), front, behind), DATA, f"the front of '{path}'")

    def model(self, session: Session) -> LanguageModel:
        """Return a session of the model as one of a language model."""
        return LanguageModel(session, self.interface.with_session_types(session.inputs), self.others)

    def short_batch(self, ids: Array, kind: str = DATA) -> dict[str, Array] | None:
        """Return a batch of a few short sequences; None where the model takes no others than it is fixed to."""
        if self.interface.fixed_batch is not None or self.interface.fixed_length is not None:
            return None
        count, length = _SHORT
        if kind == WRITTEN:
            most, length = _LONGER
            cost = max(float(count_token_macs(self.view)), 1.0) * length
            count = int(min(max(_LONGER_COST // cost, _FEWEST_LONGER), most))
        return self.batches(ids[:count, :length])[0]

    def words(self, ids: Array, kind: str = DATA) -> Matrix | None:
        """Return how common every token is where inputs of a kind show these; None where no table of them is known."""
        table, are_drawn = self.interface.table, SAMPLE_KINDS[kind].are_words_alone
        return frequencies(ids, table.rows, self.known, are_drawn=are_drawn) if table.is_known else None

    def facts(self, ids: Array | None, kind: str = DATA) -> TokenFacts:
        """Return facts about the model, and about inputs of some ids."""
        known = self.interface.vocabulary if self.interface.table.is_known else 0
        continues = token_plan.continues_text(self.view, self.interface)
        answers = TokenAnswers(known, cache_outputs(self.view.output_names), continues)
        if ids is None:
            return TokenFacts(answers)
        return TokenFacts(answers, self.short_batch(ids, kind) if ids.ndim > 1 else None, self.words(ids, kind))

    def batches(self, ids: Array) -> Batches:
        """Return batches of all inputs."""
        size = self.batch_size(ids.shape[1])
        return [
            whole_feeds(self.interface, ids[begin : begin + size], self.others) for begin in range(0, len(ids), size)
        ]

    def batch_size(self, length: int) -> int:
        """Return how many sequences of some length are run at a time: the scores of all words take most memory."""
        per_row = 4 * length * self.interface.vocabulary
        return self.interface.fixed_batch or min(max(_BATCH_BYTES // per_row, 1), _LARGEST_BATCH)

    @property
    def others(self) -> Others:
        """A function that makes inputs which hold no tokens."""
        return synthetic.others(self.view, self.seed)

    def text(
        self, plan: TokenPlan, requested: InputRequest, *, cache: Cache | None = None, progress: Progress = silent
    ) -> TokenText:
        """Return ids: what the model writes if it can within the time, else ids by how common they are."""
        known = None if self.known is None else self.known.digest
        shelf = Shelf(cache or Cache(), self.view, ("tokens", plan, requested, known))
        ids = InputInfo("ids", np.dtype(np.int64), (None, plan.length))
        checks = {"kind": _KINDS.__contains__, "reason": is_text}
        kept = shelf.find([ids], checks, (0, self.interface.vocabulary - 1))
        if kept is not None:
            ((batch,), facts) = kept
            return TokenText(batch["ids"], facts["kind"], facts["reason"])
        written = self._write(plan, requested, progress)
        shelf.keep([{"ids": written.ids}], {"kind": written.kind, "reason": written.reason})
        return written

    def draw(self, plan: TokenPlan, seed: int, why: str, *, any_ids: bool = False) -> TokenText:
        """Return ids drawn one by one, by how common they are where that is known, or any."""
        tokenizer = None if any_ids else self.known
        front, behind = ((), ()) if tokenizer is None else self._frame(plan.length)
        ids = self._random((plan.count, plan.length), seed, tokenizer)
        ids[:, : len(front)] = front
        ids[:, plan.length - len(behind) :] = behind
        if tokenizer is None:
            rows = f"uniformly below {self.interface.vocabulary:,}, without a tokenizer.json"
            return TokenText(ids, UNIFORM, f"drawn {rows}; {why}")
        return TokenText(ids, PRIOR, f"drawn by their ranks in {tokenizer.path.name}; {why}")

    def _write(self, plan: TokenPlan, requested: InputRequest, progress: Progress) -> TokenText:
        seed = requested.seed
        if plan.length <= _FIRST:
            return self.draw(plan, seed, f"sequences of {plan.length} are no text")
        if not self.interface.table.is_known:
            return self.draw(plan, seed, "the table that ids look up was not found, and only the smallest ids are safe")
        try:
            model = self.model(self._session())
            model.require_memory(self._multiple(plan.count * requested.sampling.spare), plan.length)
            if model.scores is None:
                return self.draw(plan, seed, "the model gives no scores of words, so it cannot write")
            if not model.caches and not model.scores_every_position:
                return self.draw(plan, seed, "the model scores whole sequences, so it cannot write")
            banned = banned_ids(self.known, self.interface.vocabulary)
            writing = Writing(model, banned, seed, progress, requested.sampling)
            return (self._continue if model.is_causal else self._fill_in)(writing, plan, requested)
        except (VerificationError, MemoryError, MemoryLimitError) as error:
            return self.draw(plan, seed, f"the model cannot write: {error}")

    def _continue(self, writing: Writing, plan: TokenPlan, requested: InputRequest) -> TokenText:
        model, seed, sampling = writing.model, requested.seed, requested.sampling
        how = "written by the model " + sampling.description
        affordable = token_plan.affordable_text if model.caches else token_plan.affordable_readings
        most, why = affordable(self.view, plan, requested)
        if not most:
            return self.draw(plan, seed, why)
        whole = most if model.caches else plan.count
        texts, free = self._draw_starts(self._multiple(whole * sampling.spare), plan.length, requested)
        if model.caches:
            ids = language_model.continue_texts(writing, texts, free)
        else:
            how = f"{how}, in {most} readings"
            ids = reread_texts(writing, texts, free, most)
        written = language_model.most_varied(ids, whole)
        others = self._random((plan.count - whole, plan.length), seed + 2, self.known)
        whole_batches = len(others) - len(others) % (self.interface.fixed_batch or 1)
        loose = min(self._multiple(len(others) * _LOOSE), whole_batches) if model.scores_every_position else 0
        if loose:
            free = np.ones((loose, plan.length), bool)
            free[:, 0] = False
            others[:loose] = reread_texts(replace(writing, seed=seed + 2), others[:loose], free, _LOOSE_READINGS)
        # In any order, so that samples that are held out are of all kinds.
        mixed = np.random.default_rng([seed, 3]).permutation(np.concatenate([written, others]))
        read = f"{loose} drawn and read {_LOOSE_READINGS} times, " if loose else ""
        rest = f"{read}{len(others) - loose} drawn by frequency"
        return TokenText(mixed, WRITTEN, f"{len(written)} sequences {how}, {rest}" if len(others) else how)

    def _fill_in(self, writing: Writing, plan: TokenPlan, requested: InputRequest) -> TokenText:
        blank = None if self.known is None else self.known.blank
        readings, why = token_plan.affordable_readings(self.view, plan, requested)
        if blank is None or blank >= self.interface.vocabulary or not readings:
            return self.draw(plan, requested.seed, why or "no tokenizer.json says what a blank is")
        starts = self.draw(plan, requested.seed, "").ids
        front, behind = self._frame(plan.length)
        inner = slice(len(front), plan.length - len(behind))
        ids = language_model.fill_in(writing, starts, inner, blank)
        return TokenText(ids, FILLED, "blanks filled in by the model, every position twice")

    def _session(self) -> Session:
        if isinstance(self.source, Session):
            return self.source
        memory.require(loaded_bytes(self.view), "the model as a whole")
        return Session(self.view) if self.source is None else Session(self.source, counted=self.view)

    def _multiple(self, count: float) -> int:
        """Return a number of sequences that whole batches hold, at least so many."""
        fixed = self.interface.fixed_batch or 1
        return -(-int(np.ceil(count)) // fixed) * fixed

    def _draw_starts(self, count: int, length: int, requested: InputRequest) -> tuple[Array, Array]:
        """Return drawn ids, some with a first one as texts have it, and the places that the model writes."""
        seed, sampling = requested.seed, requested.sampling
        texts = self._random((count, length), seed + 1, self.known)
        known = () if self.known is None else self.known.beginnings
        begins = [i for i in known if i < self.interface.vocabulary]
        if begins:
            texts[:: sampling.begin, 0] = np.resize(begins, len(texts[:: sampling.begin]))
        free = np.random.default_rng([seed, 4]).random(texts.shape) >= sampling.by_frequency
        free[:, :_FIRST] = False
        return texts, free

    def _random(self, shape: tuple[int, int], seed: int, tokenizer: Tokenizer | None) -> Array:
        random, rows = np.random.default_rng([seed, 2]), self.interface.vocabulary
        if tokenizer is None:
            return random.integers(0, rows, shape)
        return random.choice(rows, shape, p=tokenizer.prior(rows))

    def _frame(self, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the special ids around every sequence, where there is room for them."""
        assert self.known is not None
        front, behind = self.known.frame
        fits = len(front) + len(behind) < length and all(i < self.interface.vocabulary for i in (*front, *behind))
        return (front, behind) if fits else ((), ())


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a tokenizer."""
    if tokenizer is None:
        raise ConfigError(f"a text needs the model's tokenizer, and no {NAME} lies beside it: give --tokenizer FILE")
    return tokenizer


def tokens_of(path: Path, tokenizer: Tokenizer, interface: TokenInterface, *, most: int) -> Array:
    """Return the first tokens of a text."""
    ids = tokenizer.ids(read_text(path, most * _TOKEN_BYTES))[:most]
    if not interface.knows(ids):
        raise ConfigError(
            f"'{tokenizer.path}' gives the id {int(ids.max())}, and the model knows {interface.vocabulary:,} ids: "
            "give the tokenizer of this model"
        )
    return ids


def framed_rows(ids: Array, shape: tuple[int, int], front: Sequence[int], behind: Sequence[int] = ()) -> Array:
    """Return rows of the first ids, of a shape, with the same ids in front of and behind every row."""
    inner = ids[: shape[0] * shape[1]].reshape(shape)
    before, after = (np.tile(np.array(end, np.int64), (shape[0], 1)) for end in (front, behind))
    return np.concatenate([before, inner, after], axis=1)


def complete_arrays(interface: TokenInterface, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs that follow from a user's token ids, where these were left out or hold nothing."""
    ids = interface.ids
    values = None if ids is None else arrays.get(ids.name)
    if ids is None or values is None or np.ndim(values) != len(ids.shape) or np.asarray(values).dtype.kind not in "iu":
        return {}  # what is wrong with them is said where they are checked
    values = np.asarray(values)
    if not values.size or not interface.knows(values):
        held = f"ids from {values.min()} to {values.max()}" if values.size else "no ids"
        raise ConfigError(
            f"array '{ids.name}' holds {held}, and the model knows the ids 0 to {interface.vocabulary - 1}"
        )
    present = {name for name, array in arrays.items() if np.size(array)}

    def missing(info: TokenInput, shape: tuple[int, ...]) -> Array:
        if info.name in present:
            return np.zeros(shape, info.dtype)
        raise ConfigError(f"the data has no array '{info.name}': name the arrays after the model's inputs")

    whole = whole_feeds(interface, values.reshape(-1, values.shape[-1]), missing)
    return {name: array for name, array in whole.items() if name not in present}
