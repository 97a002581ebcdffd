"""The inputs of a language model: tokens of a user, or made without data, and all others consistent with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from onnxfold.budget.costs.running import count_token_macs
from onnxfold.errors import ConfigError
from onnxfold.files import Cache
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import Session
from onnxfold.graph.tensors import Array, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import float_values
from onnxfold.inputs.input_plan import InputRequest
from onnxfold.inputs.sample_kinds import DATA, SAMPLE_KINDS, WRITTEN
from onnxfold.inputs.tokens.answers import TokenAnswers, TokenFacts
from onnxfold.inputs.tokens.cache_heads import cache_outputs
from onnxfold.inputs.tokens.feeds import Others, whole_feeds
from onnxfold.inputs.tokens.interface import TokenInput, TokenInterface
from onnxfold.inputs.tokens.token_plan import GIVEN_TEXT, TOKENS, continues_text, planned_tokens
from onnxfold.inputs.tokens.token_text import TokenText, TokenWriter
from onnxfold.inputs.tokens.tokenizer import NAME, Tokenizer, frequencies, read_tokenizer, tokenizer_beside
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
#: Memory of a text while it is encoded, beside its bytes.
_ENCODED = 24


@dataclass(frozen=True, eq=False)
class TokenSource:
    """Where tokens for a model may come from."""

    view: GraphView
    interface: TokenInterface
    source: ModelLike | Session | None = None  # the model that onnxruntime runs; the view where it is not given
    #: The user's tokenizer file; else the one beside the model is taken, if there is one.
    tokenizer: str | PathLike[str] | None = None
    seed: int = 0  # seed of inputs that are not made of tokens

    def make_text(
        self, requested: InputRequest, *, cache: Cache | None = None, any_ids: bool = False, tokens: int = TOKENS,
        progress: Progress = silent, beside: object = None,
    ) -> tuple[TokenText, tuple[str, ...]]:  # fmt: skip
        """Return token ids without data, and notes."""
        tokenizer, notes = self.tokenizer_of(beside)
        plan = planned_tokens(self.view, self.interface, requested, tokens=tokens)
        writer = self.writer(None if any_ids else tokenizer)
        if any_ids:
            return writer.draw(plan, requested.seed, "requested"), (*notes, *plan.notes)
        return writer.text(plan, requested, cache=cache, progress=progress), (*notes, *plan.notes)

    def writer(self, tokenizer: Tokenizer | None) -> TokenWriter:
        """Return the generator of ids for the model."""
        return TokenWriter(self.view, self.interface, self.source, tokenizer, self.others)

    def tokenizer_of(self, beside: object = None) -> tuple[Tokenizer | None, tuple[str, ...]]:
        """Return the tokenizer, and a note if one beside the model cannot be read."""
        if self.tokenizer is not None:
            return read_tokenizer(Path(self.tokenizer)), ()
        return tokenizer_beside(self.source if beside is None else beside)

    def read_text(self, path: Path, requested: InputRequest, beside: object = None) -> TokenText:
        """Return the ids of the front of a text, in sequences."""
        plan = planned_tokens(self.view, self.interface, requested, text=GIVEN_TEXT)
        tokenizer, _ = self.tokenizer_of(beside)
        tokenizer = require_tokenizer(tokenizer)
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
        inner = ids[: count * length].reshape(count, length)
        rows = [np.broadcast_to(np.array(end, np.int64), (count, len(end))) for end in (front, behind)]
        whole = np.concatenate([rows[0], inner, rows[1]], axis=1)
        return TokenText(whole, DATA, f"the front of '{path}'")

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
        return frequencies(ids, table.rows, self.tokenizer_of()[0], are_drawn=are_drawn) if table.is_known else None

    def facts(self, ids: Array | None, kind: str = DATA) -> TokenFacts:
        """Return facts about the model, and about inputs of some ids."""
        known = self.interface.vocabulary if self.interface.table.is_known else 0
        continues = continues_text(self.view, self.interface)
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

        def values(info: TokenInput, shape: tuple[int, ...]) -> Array:
            return float_values(self.view, info.name, shape, self.seed).astype(info.dtype)

        return values


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """Return a tokenizer."""
    if tokenizer is None:
        raise ConfigError(f"a text needs the model's tokenizer, and no {NAME} lies beside it: give --tokenizer FILE")
    return tokenizer


def tokens_of(path: Path, tokenizer: Tokenizer, interface: TokenInterface, *, most: int) -> Array:
    """Return the first tokens of a text."""
    try:
        size = min(most * _TOKEN_BYTES, path.stat().st_size)
        memory.require(_ENCODED * size, f"the text '{path}'", "read less of it")
        with path.open("rb") as file:
            content = file.read(size)
        text = content.decode("utf-8", errors="strict")
    except UnicodeDecodeError as error:
        if error.start < len(content) - 4:  # else a character was cut
            raise ConfigError(f"'{path}' is not UTF-8 text: give a .txt file") from None
        text = content[: error.start].decode("utf-8")
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror or error}") from None
    ids = tokenizer.ids(text)[:most]
    if not interface.knows(ids):
        raise ConfigError(
            f"'{tokenizer.path}' gives the id {int(ids.max())}, and the model knows {interface.vocabulary:,} ids: "
            "give the tokenizer of this model"
        )
    return ids


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
