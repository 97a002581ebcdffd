"""Files ``tokenizer.json``: how common tokens are, which are special, and the tokens of a text.

The file is that of PyPI ``tokenizers``. How common tokens are is read from it alone: a byte pair encoding learns its
merges in the order of their frequency, so a token of merge rank r has about the probability 1 / (r + r0), as Zipf's law
has it; a word piece vocabulary is sorted the same way; a unigram model states logarithms of probabilities. Only texts
need ``tokenizers`` itself.
"""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.errors import ConfigError, OnnxFoldError
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.machine import memory

#: Name of such a file beside a model.
NAME = "tokenizer.json"
#: The folder that optimum and transformers.js put graphs in.
_GRAPHS = "onnx"
#: r0, of merges and of words: the first ranks are about as common as each other, more so where parts of words are
#: merged before words are.
_FIRST_MERGES, _FIRST_WORDS = 50.0, 10.0
#: Where rare words begin among all, in classes: of a text, they are 3, 2 and 2 words in a hundred.
_RARE = (1 / 3, 1 / 2, 2 / 3)
#: Characters that are words of their own, the most common ones first. A vocabulary of words is sorted by how common
#: they are only behind its characters, which are sorted by their codes.
_CHARACTERS = ",.a-\"'()s:;i?!"
#: Memory of a JSON file beside its bytes, as Python objects; and of a text while it is encoded.
_OBJECTS, _ENCODED = 12, 24
#: Special tokens that a blank is written as, and that a text begins with where the file states no such thing.
_BLANKS = ("[MASK]", "<mask>")
_BEGINNINGS = ("<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>", "[BOS]")
#: Places that are kept free in a vocabulary.
_UNUSED = re.compile(r"[\[<]unused\d+[\]>]")


class Tokenizer:
    """A tokenizer file; raises any error of Python on what is no tokenizer."""

    def __init__(self, path: Path, content: dict[str, Any], digest: str) -> None:
        self.path, self.content = path, content
        self.digest = digest  # tells it from other tokenizers
        added = {token["content"]: token for token in content.get("added_tokens") or ()}
        ids = {text: token["id"] for text, token in added.items()}
        self.added_ids = frozenset(ids.values())  # of the tokens beside the model's own pieces, special or not
        self.special = frozenset(token["id"] for token in added.values() if token["special"])  # they stand for no text
        self.blank: int | None = next((ids[text] for text in _BLANKS if text in ids), None)  # it is to be filled in
        self.frame = _frame(content)  # special ids that stand in front of, and behind, every text
        #: Special ids that a text of its own may begin with.
        self.beginnings = self.frame[0][-1:] or tuple(ids[text] for text in _BEGINNINGS if text in ids)[:1]
        self._weights = _weights(content["model"], self.special)
        known = (*self.added_ids, *self.frame[0], *self.frame[1], *self._weights)
        if not self._weights or not all(type(i) is int for i in known):
            raise TypeError
        if not np.isfinite(list(self._weights.values())).all():
            raise ValueError

    @cached_property
    def rare(self) -> tuple[range, ...]:
        """Ids of words that are ever rarer, which follow each other; empty where ids are not in such an order."""
        words = np.array(sorted(set(self._weights) - self.special), np.int64)
        run = max(np.split(words, np.flatnonzero(np.diff(words) > 1) + 1), key=len)
        chances = np.array([self._weights[int(i)] for i in run])
        bounds = [round(len(run) * part) for part in (*_RARE, 1.0)]
        parts = [range(int(run[0]) + i, int(run[0]) + j) for i, j in pairwise(bounds)]
        sorts = [np.median(chances[i:j]) >= chances[j:].max(initial=0.0) for i, j in pairwise([0, *bounds])]
        return tuple(parts) if all(map(len, parts)) and bounds[0] and all(sorts) else ()

    def prior(self, rows: int) -> Array:
        """Return how common every token is, probabilities of the shape (rows,); special ones and unknown ones are 0."""
        chances = np.zeros(rows)
        for token, weight in self._weights.items():
            if 0 <= token < rows and token not in self.special:
                chances[token] = weight
        total = chances.sum()
        return chances / total if total > 0 else np.full(rows, 1.0 / rows)

    def ids(self, text: str) -> Array:
        """Return the ids of a text, without those around it."""
        return np.array(self._use(lambda encoder: encoder.encode(text, add_special_tokens=False).ids), np.int64)

    def byte_count(self, texts: Sequence[Array]) -> int:
        """Return of how many bytes in UTF-8 the texts are that ids stand for; 0 where the file does not say it."""
        rows = [ids.tolist() for ids in texts]
        if self.content.get("decoder"):
            decoded = self._use(lambda encoder: encoder.decode_batch(rows, skip_special_tokens=False))
        elif self.content.get("pre_tokenizer"):  # what stood between the pieces is not known
            return 0
        else:
            decoded = self._use(lambda encoder: [encoder.id_to_token(i) or "" for row in rows for i in row])
        return sum(len(text.encode()) for text in decoded)

    def _use(self, work: Callable[[Any], Any]) -> Any:
        library = tokenizers_library()
        try:
            encoder = library.Tokenizer.from_file(str(self.path))
            encoder.no_truncation()
            encoder.no_padding()
            return work(encoder)
        except Exception as error:  # a binding: plain Exception
            raise ConfigError(f"tokenizers cannot use '{self.path}': {' '.join(str(error).split())[:200]}") from None


def _frame(content: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    steps = content.get("post_processor") or {}
    front: list[int] = []
    behind: list[int] = []
    for step in steps.get("processors", [steps]):
        if step.get("type") == "TemplateProcessing":
            ends = front
            for piece in step.get("single", ()):
                if "Sequence" in piece:
                    ends = behind
                elif "SpecialToken" in piece:
                    ends += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
        elif step.get("type") in ("BertProcessing", "RobertaProcessing"):
            front.append(step["cls"][1])
            behind.append(step["sep"][1])
    return tuple(front), tuple(behind)


def _weights(model: dict[str, Any], special: frozenset[int]) -> dict[int, float]:
    """Return how common tokens are, by their ids, up to a factor."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # unigram: pairs of a piece and the logarithm of its probability
        return {i: float(np.exp(score)) for i, (_, score) in enumerate(vocabulary)}
    ranks: dict[int, int] = {}
    for rank, merge in enumerate(model.get("merges") or ()):
        made = "".join(pair_of(merge))
        if made in vocabulary:
            ranks.setdefault(vocabulary[made], rank)
    used = {token: i for token, i in vocabulary.items() if not _UNUSED.fullmatch(token)}
    first = _FIRST_MERGES
    if not ranks:
        words = (i for t, i in used.items() if len(t.removeprefix("##")) > 1 and i not in special)
        ranks = {i: rank for rank, i in enumerate(sorted(words))}
        ranks |= {vocabulary[c]: rank for rank, c in enumerate(_CHARACTERS) if c in used}
        first = _FIRST_WORDS
    # Other bytes and letters mostly stand inside of longer tokens.
    return {i: 1.0 / (ranks.get(i, len(ranks)) + first) for i in used.values()}


def pair_of(merge: str | list[str]) -> tuple[str, ...]:
    """Return the two parts of a merge, in either of the forms that files have."""
    return tuple(merge.split(" ") if isinstance(merge, str) else merge)


def tokenizers_library() -> Any:
    """Return the library of tokenizers."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigError("a text needs tokenizers, which is not installed: pip install tokenizers") from None
    return tokenizers


def read_text(path: Path, most: int | None = None) -> str:
    """Return a text, or its first bytes without a character that is cut."""
    try:
        size = path.stat().st_size if most is None else min(most, path.stat().st_size)
        memory.require(_ENCODED * size, f"the text '{path}'", "read less of it")
        with path.open("rb") as file:
            return codecs.getincrementaldecoder("utf-8")().decode(file.read(size))
    except UnicodeDecodeError:
        raise ConfigError(f"'{path}' is not UTF-8 text: give a .txt file") from None
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror or error}") from None


def read_tokenizer(path: str | PathLike[str]) -> Tokenizer:
    """Read a tokenizer file."""
    path = Path(path)
    try:
        if not path.is_file():
            raise ConfigError(f"'{path}' is no file: give the {NAME} of the model")
        memory.require(_OBJECTS * path.stat().st_size, f"'{path}'")
        data = path.read_bytes()
        return Tokenizer(path, json.loads(data), hashlib.sha256(data).hexdigest())
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"'{path}' is not JSON: give the {NAME} of the model") from None
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError):
        raise ConfigError(f"'{path}' is no tokenizer that can be read: give the {NAME} of the model") from None


def find_tokenizer(own: str | PathLike[str] | None, source: object) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """Return a user's own tokenizer, else the one in a model's folder, if any, and a note if it cannot be read."""
    if own is not None:
        return read_tokenizer(own), ()
    if not isinstance(source, str | Path):
        return None, ()
    folder = Path(source).absolute().parent
    paths = (place / NAME for place in ([folder, folder.parent] if folder.name == _GRAPHS else [folder]))
    path = next(filter(os.path.isfile, paths), None)
    try:
        return None if path is None else read_tokenizer(path), ()
    except OnnxFoldError as error:
        return None, (f"{error}; the model was run on ids without it",)


def rare_words(model: object, path: str | PathLike[str] | None = None) -> tuple[range, ...]:
    """Return the ids of words that are rare, in classes, as far as a tokenizer says it."""
    tokenizer, _ = find_tokenizer(path, model)
    return () if tokenizer is None else tokenizer.rare


def banned_ids(tokenizer: Tokenizer | None, rows: int) -> Array:
    """Return which ids a model that writes must not write, shape (rows,): those that stand for no text."""
    special = [] if tokenizer is None else [i for i in tokenizer.special if i < rows]
    banned = np.isin(np.arange(rows), special)
    return banned & (not banned.all())


def frequencies(ids: Array, rows: int, tokenizer: Tokenizer | None, *, are_drawn: bool = False) -> Matrix:
    """Return the probability of every token, shape (rows,): as counted, with the prior of a tokenizer for the others.

    Of N tokens T different ones were seen, so a new one is expected once in about N / T tokens more. The counts then
    have the weight N / (N + T), and the prior has the rest. Witten and Bell, "The zero-frequency problem", IEEE
    Transactions on Information Theory 37, 1991.
    """
    counts = np.bincount(ids.reshape(-1), minlength=rows)[:rows].astype(np.float64)
    prior = np.full(rows, 1.0 / rows) if tokenizer is None else tokenizer.prior(rows)
    special = prior == 0.0
    prior[special] = prior[~special].min()  # rare, but there
    prior /= prior.sum()
    if are_drawn:
        counts[~special] = prior[~special] * (counts[~special].sum() / prior[~special].sum())
        different = float(special.sum()) * prior[special].sum()
    else:
        different = float((counts > 0).sum())
    probabilities: Matrix = (counts + different * prior) / (counts.sum() + different)
    return probabilities
