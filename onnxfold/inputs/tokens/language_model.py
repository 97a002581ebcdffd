"""A network that gives a score to every token of its vocabulary, run in onnxruntime, and text that it writes itself.

A decoder with caches writes one token after the other. One without caches would have to read everything again for every
token; it draws all positions at once, each with a number that stays the same, and reads what it drew: after k readings
the first k tokens are those that it would have written one by one, and most others soon are (Jacobi decoding). A
network with a masked-language head fills in blanks: a quarter of the positions at a time, each of them twice.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.interface import (
    Others,
    Purpose,
    TokenInput,
    TokenInterface,
    cache_of,
    fixed_past,
    token_feeds,
    whole_feeds,
)
from onnxfold.progress import Progress, silent

#: Words in the names of outputs that hold states and caches.
_NO_SCORES = re.compile(r"hidden|embed|state|pool|present|past|cache", re.IGNORECASE)
_SCORES = re.compile(r"logits", re.IGNORECASE)
#: Scores may be padded, or fewer than the rows of the table.
_PADDED = 1.5
_TRIED = 8
#: How far scores may differ that are the same but for rounding, beside their deviation.
_ROUNDING = 1e-2


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A session whose outputs are known."""

    session: Session
    interface: TokenInterface
    others: Others  # makes inputs that are not made of tokens

    @cached_property
    def scores(self) -> int | None:
        """Number of the output that holds the scores of all tokens; None where there is none.

        It is found in a run on a few ids, since shapes of outputs may not be stated.
        """
        if self.interface.ids is None:
            return None
        ids, outputs = self._trial_ids(), self._trial_outputs
        rows = self.interface.vocabulary if self.interface.table.is_known else 0
        for i, (name, values) in enumerate(zip(self.session.output_names, outputs, strict=True)):
            fits = values.ndim == 3 and values.shape[:2] in (ids.shape, (len(ids), 1))
            fits |= values.ndim == 2 and len(values) == len(ids) and len(self.interface.ids.shape) != 1
            if not fits or values.dtype.kind != "f" or _NO_SCORES.search(name):
                continue
            if rows / _PADDED <= values.shape[-1] <= rows * _PADDED or (not rows and _SCORES.search(name)):
                return i
        return None

    @cached_property
    def scores_every_position(self) -> bool:
        """Whether there are scores for every position of a sequence, and not for the sequence alone."""
        return self._word_scores(self._trial_outputs).shape[:-1] == self._trial_ids().shape

    @cached_property
    def is_causal(self) -> bool:
        """Whether the scores of a position do not depend on later ones."""
        if self.interface.inputs_for(Purpose.CACHE):
            return True
        a = self._word_scores(self._trial_outputs)
        if a.ndim < 3 or a.shape[1] < 2:
            return True
        other = self._trial_ids()
        other[:, -1] = (other[:, -1] + 1) % self.interface.vocabulary
        b = self.all_scores(other)
        return bool(np.abs(a[:, :-1] - b[:, :-1]).max() <= _ROUNDING * max(float(a.std()), 1e-12))

    @cached_property
    def caches(self) -> dict[str, str]:
        """The output that continues each cache, by the input; empty where the network does not continue them all."""
        inputs = [info.name for info in self.interface.inputs_for(Purpose.CACHE) if not info.is_encoders]
        if not inputs or self.interface.fixed_length is not None or fixed_past(self.interface):
            return {}
        outputs = cache_outputs(self.session.output_names)
        by_key = {_key(name): name for name in outputs}
        output_of = {name: by_key[_key(name)] for name in inputs if _key(name) in by_key}
        if len(output_of) == len(inputs) and len(set(output_of.values())) == len(inputs):
            return output_of
        return dict(zip(inputs, outputs, strict=True)) if len(outputs) == len(inputs) else {}

    def sequences_at_once(self, count: int, length: int) -> int:
        """Return how many sequences are written or read at a time: their caches or scores fit into memory together."""
        if self.interface.fixed_batch:
            return self.interface.fixed_batch
        needed = 8 * length * self.interface.vocabulary
        if caches := self.interface.inputs_for(Purpose.CACHE):
            needed = 4 * max(sum(prod(cache_of(cache, 1, length)) for cache in caches), self.interface.vocabulary)
        return max(min(_TOGETHER // needed, count), 1)

    def require_memory(self, count: int, length: int) -> None:
        """Ask once for the memory of all runs on so many sequences of up to this length."""
        count = self.sequences_at_once(count, length)

        def zeros(info: TokenInput, shape: tuple[int, ...]) -> Array:
            return np.zeros(shape, info.dtype)  # sizes alone count

        free = self.interface.fixed_length is None and not fixed_past(self.interface)
        if free and self.interface.inputs_for(Purpose.CACHE):
            ids = np.zeros((max(count, 2), _TRIED), np.int64)
            self.session.require(token_feeds(self.interface, ids, zeros, past=length))
        else:
            shape = max(count, self.interface.fixed_batch or 2), max(length, self.interface.fixed_length or _TRIED)
            self.session.require(whole_feeds(self.interface, np.zeros(shape, np.int64), zeros))

    def all_scores(self, ids: Array) -> Array:
        """Return the scores at every position, shape (sequences, length, vocabulary)."""
        return self._word_scores(self.session.run(whole_feeds(self.interface, ids, self.others)))

    def step(self, ids: Array, caches: Mapping[str, Array], past: int) -> tuple[Array, dict[str, Array]]:
        """Return the scores behind the last of some ids, shape (sequences, vocabulary), and the caches."""

        def values(info: TokenInput, shape: tuple[int, ...]) -> Array:
            return caches[info.name] if info.name in caches else self.others(info, shape)

        outputs = self.session.run(token_feeds(self.interface, ids, values, past=past))
        at = {name: i for i, name in enumerate(self.session.output_names)}
        scores = self._word_scores(outputs)
        last = scores if scores.ndim == 2 else scores[:, -1]
        return last, {name: outputs[at[output]] for name, output in self.caches.items()}

    def _word_scores(self, outputs: list[Array]) -> Array:
        assert self.scores is not None
        scores = outputs[self.scores]
        if self.interface.table.is_known:  # rows of padding are no words
            scores = scores[..., : self.interface.vocabulary]
        return scores if scores.dtype == np.float32 else scores.astype(np.float32)

    @cached_property
    def _trial_outputs(self) -> list[Array]:
        return self.session.run(whole_feeds(self.interface, self._trial_ids(), self.others))

    def _trial_ids(self) -> Array:
        shape = self.interface.fixed_batch or 2, self.interface.length(_TRIED)
        return np.arange(np.prod(shape)).reshape(shape) % self.interface.vocabulary


def _key(name: str) -> tuple[str, ...]:
    """Return the parts of a name that distinguish caches: numbers, and whether keys or values."""
    return tuple(re.findall(r"\d+|key|value|encoder|decoder", name.lower()))


@dataclass(frozen=True)
class Sampling:
    """How a text is drawn from the scores of a model."""

    temperatures: tuple[float, ...] = (1.0,)  # of the sequences in turn
    floor: float = 0.0  # tokens that are less likely than the likeliest one by this factor are not drawn
    by_frequency: float = 0.0  # part of the words that are drawn by frequency
    begin: int = 1  # of so many sequences, the first begins as texts do
    spare: float = 1.0  # sequences that are written for every one that is kept: the most repetitive ones are left out

    @property
    def description(self) -> str:
        """How it is done, in words."""
        text = f"at temperatures {', '.join(f'{t:g}' for t in self.temperatures)}"
        return f"{text}, one word in {1 / self.by_frequency:.0f} drawn by frequency" if self.by_frequency else text


#: Shows many words: unlikely tokens make text that is nobody's, likely ones make all texts alike. What a model writes
#: has few subjects and few words; after a drawn word it goes on with another.
VARIED = Sampling((0.7, 0.85, 1.0), floor=0.02, by_frequency=1 / 6, begin=2, spare=1.125)
#: Draws texts as likely as they are to the model, so that what another model loses on them is what it loses on text.
ANCESTRAL = Sampling()
#: Sequences of so many tokens should not come again.
_GRAM = 4


def variety(ids: Array) -> Array:
    """Return which part of the n-grams of every sequence are different from each other, shape (sequences,)."""
    if ids.shape[1] <= _GRAM:
        return np.ones(len(ids))
    grams = np.lib.stride_tricks.sliding_window_view(ids, _GRAM, axis=1)
    return np.array([len(np.unique(rows, axis=0)) / len(rows) for rows in grams])


def most_varied(ids: Array, count: int) -> Array:
    """Return so many sequences, those that repeat themselves most left out, in their order."""
    order = np.argsort(-np.round(variety(ids), 6), kind="stable")[:count]
    return ids[np.sort(order)]


#: Stage that the progress callback gets.
STAGE = "write text"
#: Bytes of the caches, or the scores, of sequences that are written at a time.
_TOGETHER = 512 << 20
#: Parts of the positions that are blank in turn, and how often each is.
_PARTS, _SWEEPS = 4, 2


@dataclass(frozen=True, eq=False)
class Writing:
    """The model that writes, and how tokens are drawn."""

    model: LanguageModel
    banned: Array  # which tokens are never drawn
    seed: int
    progress: Progress = silent
    sampling: Sampling = VARIED

    def numbers(self, count: int, length: int, turn: int = 0) -> tuple[Array, Array]:
        """Return a number from 0 to 1 for every position, shape (count, length), and temperatures, shape (count,)."""
        uniform = np.random.default_rng([self.seed + turn, 0]).random((count, length))
        return uniform, np.resize(np.array(self.sampling.temperatures), count)

    def draw(self, scores: Array, uniform: Array, temperature: Array) -> Array:
        """Return one token per row of scores."""
        scaled = np.where(self.banned[: scores.shape[1]], -np.inf, scores) / temperature[:, None]
        scaled -= scaled.max(axis=1, keepdims=True)
        if np.isnan(scaled).any():
            raise VerificationError("the scores of the model are not finite")
        chances = np.exp(scaled)
        chances[chances < self.sampling.floor] = 0.0
        total = np.cumsum(chances, axis=1, dtype=np.float64)
        tokens: Array = (total > uniform[:, None] * total[:, -1:]).argmax(axis=1)
        return tokens


def continue_texts(writing: Writing, texts: Array, written: Array) -> Array:
    """Return sequences that a decoder with caches continues, shape (sequences, length)."""
    model, (count, length) = writing.model, texts.shape
    uniform, temperature = writing.numbers(count, length)
    ids = texts.copy()
    first = int(np.append(written.any(axis=0), True).argmax())  # the length where none is written
    steps = length - first
    for part in _parts(model, count, length):
        caches: dict[str, Array] = {}
        past, new = 0, ids[part, :first]
        for at in range(first, length):
            writing.progress(STAGE, part.start * steps // count + (at - first) * len(new) // count, steps)
            scores, caches = model.step(new, caches, past)
            past += new.shape[1]
            tokens = writing.draw(scores, uniform[part, at], temperature[part])
            ids[part, at] = np.where(written[part, at], tokens, texts[part, at])
            new = ids[part, at : at + 1]
    return ids


def reread_texts(writing: Writing, texts: Array, written: Array, readings: int) -> Array:
    """Return sequences that a decoder without caches writes, shape (sequences, length)."""
    model, (count, length) = writing.model, texts.shape
    uniform, temperature = writing.numbers(count, length)
    ids = texts.copy()
    for reading in range(readings if written.any() else 0):
        writing.progress(STAGE, reading, readings)
        before = ids.copy()
        for part in _parts(model, count, length):
            rows, at = np.nonzero(written[part])
            scores = model.all_scores(before[part])[rows, at - 1]
            ids[part][rows, at] = writing.draw(scores, uniform[part][rows, at], temperature[part][rows])
        if np.array_equal(ids, before):
            break
    return ids


def fill_in(writing: Writing, starts: Array, inner: slice, blank: int) -> Array:
    """Return sequences of tokens that a masked-language head takes for likely, shape (sequences, length)."""
    model, (count, length) = writing.model, starts.shape
    places = np.arange(length)[inner]
    random = np.random.default_rng([writing.seed, 1])
    ids = starts.copy()
    for sweep in range(_SWEEPS):
        uniform, temperature = writing.numbers(count, length, sweep)
        turn = random.permuted(np.broadcast_to(np.arange(len(places)) % _PARTS, (count, len(places))), axis=1)
        for quarter in range(_PARTS):
            writing.progress(STAGE, sweep * _PARTS + quarter, _SWEEPS * _PARTS)
            hidden = np.zeros(ids.shape, bool)
            hidden[:, places] = turn == quarter
            shown = np.where(hidden, blank, ids)
            for part in _parts(model, count, length):
                rows, at = np.nonzero(hidden[part])
                if len(rows):
                    scores = model.all_scores(shown[part])[rows, at]
                    ids[part][rows, at] = writing.draw(scores, uniform[part][rows, at], temperature[part][rows])
    return ids


def write_greedily(model: LanguageModel, banned: Array, starts: Array, length: int, progress: Progress) -> Array:
    """Return the likeliest continuation of some ids, token by token, shape (sequences, length)."""
    ids, first = np.pad(starts, ((0, 0), (0, length))), starts.shape[1]
    for part in _parts(model, *ids.shape):
        rows, past = ids[part], 0
        caches: dict[str, Array] = {}
        for at in range(first, ids.shape[1]):
            progress(STAGE, part.start * length + (at - first) * len(rows), len(ids) * length)
            if model.caches:
                scores, caches = model.step(rows[:, past:at], caches, past)
                past = at
            else:
                scores = model.all_scores(rows if model.interface.fixed_length else rows[:, :at])[:, at - 1]
            rows[:, at] = np.where(banned[: scores.shape[1]], -np.inf, scores).argmax(axis=1)
    return ids[:, first:]


def _parts(model: LanguageModel, count: int, length: int) -> list[slice]:
    size = model.sequences_at_once(count, length)
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]
