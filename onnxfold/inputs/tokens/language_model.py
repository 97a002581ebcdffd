"""A network that gives a score to every token of its vocabulary, run in onnxruntime."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.feeds import Others, fixed_past, token_feeds, whole_feeds
from onnxfold.inputs.tokens.interface import Purpose, TokenInput, TokenInterface

#: Words in the names of outputs that hold states and caches.
_NO_SCORES = re.compile(r"hidden|embed|state|pool|present|past|cache", re.IGNORECASE)
_SCORES = re.compile(r"logits", re.IGNORECASE)
#: Scores may be padded, or fewer than the rows of the table.
_PADDED = 1.5
_TRIED = 8
#: How far scores may differ that are the same but for rounding, beside their deviation.
_ROUNDING = 1e-2


def no_others(info: TokenInput, shape: tuple[int, ...]) -> Array:
    """Refuse inputs that are not made of tokens."""
    raise VerificationError(f"the input '{info.name}' is not made of tokens")


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A session whose outputs are known."""

    session: Session
    interface: TokenInterface
    others: Others = no_others  # makes inputs that are not made of tokens

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

    def require_memory(self, count: int, length: int) -> None:
        """Ask once for the memory of all runs on so many sequences of up to this length."""

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
        """All outputs for a few ids."""
        return self.session.run(whole_feeds(self.interface, self._trial_ids(), self.others))

    def _trial_ids(self) -> Array:
        shape = self.interface.fixed_batch or 2, self.interface.length(_TRIED)
        ids: Array = np.arange(np.prod(shape)).reshape(shape) % self.interface.vocabulary
        return ids


def _key(name: str) -> tuple[str, ...]:
    """Return the parts of a name that distinguish caches: numbers, and whether keys or values."""
    return tuple(re.findall(r"\d+|key|value|encoder|decoder", name.lower()))
