"""Parts that the inputs of a language model play, recognised by name and by type, and consistent values of all of them.

Ids, masks, positions, types, caches and lengths belong together: a mask is as long as cache and ids, positions go on
where the cache ends.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.group import lists_by_key
from onnxfold.errors import VerificationError
from onnxfold.graph.run.session import InputInfo
from onnxfold.graph.tensors import Array, Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.given_inputs import input_infos
from onnxfold.inputs.tokens.embedding import LookUp, look_up
from onnxfold.language.lookups import head_counts


class Purpose(Enum):
    """Purpose of an input; the value says it in words."""

    IDS = "token ids"
    MASK = "attention mask of ones"
    CAUSAL_MASK = "causal mask"
    POSITIONS = "positions"
    TYPES = "token types, all 0"
    CACHE = "past of length 0"
    USES_CACHE = "use of the past, off"
    PAST_LENGTH = "length of the past"
    LAST_POSITION = "length of the past and the sequence, less one"
    TOTAL_LENGTH = "length of the past and the sequence"
    LENGTH = "length of the sequence"
    KEPT_LOGITS = "number of logits to keep, 0 for all"
    EMBEDDED = "embedded tokens"
    OTHER = "generated"


#: Names of inputs of the encoder of a model whose decoder reads it; such inputs are as long as each other.
ENCODER = re.compile(r"(^|[._/])(encoder|cross)", re.IGNORECASE)

_IDS = r"(^|[./])((decoder_)?input_ids?|(input_|src_|text_)?(token_ids|tokens)|ids|word_ids)$"
_INTEGERS, _FLAGS, _FLOATS = "iu", "biuf", "f"
#: Name, kinds of element types, ranks, and what such an input is. The first row that fits counts.
_ROWS: tuple[tuple[re.Pattern[str], str, tuple[int, ...], Purpose], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kinds, ranks, purpose)
    for pattern, kinds, ranks, purpose in (
        (_IDS, _INTEGERS, (1, 2), Purpose.IDS),
        (r"use_(past|cache)", "b", (0, 1), Purpose.USES_CACHE),
        (r"logits_to_keep", _INTEGERS, (0, 1), Purpose.KEPT_LOGITS),
        (r"total_seq", _INTEGERS, (0, 1), Purpose.TOTAL_LENGTH),
        (r"seqlens_k", _INTEGERS, (1, 2), Purpose.LAST_POSITION),
        (r"past_(key_values_|kv_)?(seq\w*_)?len", _INTEGERS, (0, 1), Purpose.PAST_LENGTH),
        (r"(^|[._/])seq(uence)?_?len", _INTEGERS, (0, 1), Purpose.LENGTH),
        (r"(token_type|segment)_?ids?", _INTEGERS, (1, 2), Purpose.TYPES),
        (r"position", _INTEGERS, (1, 2, 3), Purpose.POSITIONS),
        (r"mask", _FLAGS, (1, 2), Purpose.MASK),
        (r"mask", _FLAGS, (3, 4), Purpose.CAUSAL_MASK),
        (r"past|cache|(^|[._/])kv", "fiu", (3, 4, 5), Purpose.CACHE),
        (r"inputs?_embed", _FLOATS, (3,), Purpose.EMBEDDED),
    )
)
#: So many inputs that are alike are named.
_SHOWN = 3
#: Parts that hold the sequences themselves.
_SEQUENCES = (Purpose.IDS, Purpose.EMBEDDED)
#: Parts that tell a language model where there are no token ids.
_TELLING = (Purpose.CACHE, Purpose.MASK, Purpose.CAUSAL_MASK)


@dataclass(frozen=True)
class TokenInput(InputInfo):
    """One input. Of a cache, the length may be free and nothing else but the batch."""

    purpose: Purpose
    is_encoders: bool  # whether it belongs to an encoder whose result the model reads


@dataclass(frozen=True)
class TokenInterface:
    """All inputs of a language model."""

    inputs: tuple[TokenInput, ...]
    table: LookUp  # limits of the tables in which ids and positions are looked up

    def inputs_for(self, *purposes: Purpose) -> list[TokenInput]:
        """Return the inputs for any of some purposes."""
        return [info for info in self.inputs if info.purpose in purposes]

    @property
    def ids(self) -> TokenInput | None:
        """The token ids; None where embedded tokens are read in their place."""
        return next(iter(self.inputs_for(Purpose.IDS)), None)

    @property
    def vocabulary(self) -> int:
        """Number of ids that the model knows; ids are below it."""
        return self.table.rows

    def knows(self, ids: npt.NDArray[Any]) -> bool:
        """Whether ids are those of words, as far as that is known."""
        return not ids.size or (ids.min() >= 0 and (not self.table.is_known or ids.max() < self.vocabulary))

    @property
    def fixed_batch(self) -> int | None:
        """The size of batch that the model is fixed to; None where it takes any."""
        if self.table.is_alone:
            return 1
        return next((info.shape[0] for info in self.inputs_for(*_SEQUENCES) if len(info.shape) > 1), None)

    @property
    def fixed_length(self) -> int | None:
        """The length of sequences that the model is fixed to; None where it takes any."""
        return next((info.shape[-1 if len(info.shape) < 3 else 1] for info in self.inputs_for(*_SEQUENCES)), None)

    def length(self, usual: int) -> int:
        """Return the length that the model is fixed to, else the usual one, or as far as its positions reach."""
        return self.fixed_length or min(usual, self.table.longest or usual)

    def with_session_types(self, session_inputs: Sequence[InputInfo]) -> "TokenInterface":
        """Return the same inputs as onnxruntime takes them: a float32 twin in float32, caches with their own heads."""
        known, inputs = {info.name: info for info in session_inputs}, list(self.inputs)
        for i, declared in enumerate(inputs):
            info = known.get(declared.name)
            if info is not None:
                sizes = info.shape if len(info.shape) == len(declared.shape) else declared.shape
                pairs = zip(declared.shape, sizes, strict=True)
                shape = tuple(old if size is None or old is None else size for old, size in pairs)
                inputs[i] = replace(declared, dtype=info.dtype, shape=shape)
        return replace(self, inputs=tuple(inputs))

    def __str__(self) -> str:
        """Return a line on the inputs that the model takes; many that are alike are counted."""
        parts = []
        for words, names in lists_by_key((self._words(info), info.name) for info in self.inputs).items():
            some = f"{names[0]} ... {names[-1]} ({len(names)} inputs)" if len(names) > _SHOWN else ", ".join(names)
            parts.append(f"{some} = {words}")
        return "; ".join(parts)

    def _words(self, info: TokenInput) -> str:
        if info.purpose is Purpose.IDS:
            return f"token ids below {self.vocabulary:,}"
        return f"{info.purpose.value} (encoder)" if info.is_encoders else info.purpose.value


def token_interface(view: GraphView) -> TokenInterface | None:
    """Return the purposes of the inputs of a language model; None for any other model."""
    inputs: list[TokenInput] = []
    for info in input_infos(view):
        purpose = _purpose(info)
        shape = cache_shape(view, info.name, info.shape) if purpose is Purpose.CACHE else info.shape
        inputs.append(TokenInput(info.name, info.dtype, shape, purpose, bool(ENCODER.search(info.name))))
    if not _has_tokens(inputs):
        inputs = _with_ids_of_table(view, inputs)
    if not _has_tokens(inputs):
        return None
    ids = [info.name for info in inputs if info.purpose is Purpose.IDS]
    return TokenInterface(tuple(inputs), look_up(view, ids[0] if ids else ""))


def _purpose(info: InputInfo) -> Purpose:
    fits = (
        purpose
        for pattern, kinds, ranks, purpose in _ROWS
        if pattern.search(info.name) and info.dtype.kind in kinds and len(info.shape) in ranks
    )
    return next(fits, Purpose.OTHER)


def _has_tokens(inputs: list[TokenInput]) -> bool:
    purposes = {info.purpose for info in inputs}
    return Purpose.IDS in purposes or (Purpose.EMBEDDED in purposes and not purposes.isdisjoint(_TELLING))


def _with_ids_of_table(view: GraphView, inputs: list[TokenInput]) -> list[TokenInput]:
    """Take the one row of integers that looks up a table for token ids, whatever its name.

    Several tables are those of categories.
    """
    at = [i for i, info in enumerate(inputs) if info.purpose is Purpose.OTHER and info.dtype.kind in _INTEGERS]
    rows = [i for i in at if look_up(view, inputs[i].name).is_known]
    if len(rows) != 1 or len(inputs[rows[0]].shape) != 2 or inputs[rows[0]].shape[1] == 1:
        return inputs
    inputs[rows[0]] = replace(inputs[rows[0]], purpose=Purpose.IDS)
    return inputs


#: Words in the symbols of dimensions that count positions.
_LENGTHS = ("past", "seq", "len", "total")
#: Operators with heads as attributes.
_ATTENTION = ("GroupQueryAttention", "MultiHeadAttention", "Attention")


def cache_shape(view: GraphView, name: str, shape: Shape) -> Shape:
    """Return the shape of a cache, None where it depends on the batch and where it is as long as what it holds.

    Exporters leave other dimensions free, too; then the operator that reads the cache tells them.
    """
    batch = 1 if len(shape) == 5 else 0  # keys and values together, (2, batch, heads, length, size)
    free = [axis for axis, d in enumerate(shape) if d is None and axis != batch]
    if len(free) < 2:
        return shape
    symbols = view.symbols(name) or ("",) * len(shape)
    counting = [axis for axis in free if any(word in symbols[axis].lower() for word in _LENGTHS)]
    length = counting[0] if counting else len(shape) - 2 if len(shape) - 2 in free else free[0]
    heads, size = next((_heads(view, node) for node in view.consumers(name) if node.op_type in _ATTENTION), (0, 0))
    known = {len(shape) - 3: heads, len(shape) - 1: size}
    return tuple((known.get(axis, 0) or None) if axis in free and axis != length else d for axis, d in enumerate(shape))


def _heads(view: GraphView, node: NodeProto) -> tuple[int, int]:
    """Return the number of heads in a cache, and their size; 0 for what is not known."""
    queries, cached = head_counts(node)
    cached = cached or queries
    width = (view.shape(node.input[0]) or (0,))[-1] or 0
    heads = queries if any(node.input[1:2]) else queries + 2 * cached  # without keys, these lie behind queries
    return cached, width // heads if heads else 0


#: Positions of an encoder's result that a decoder reads.
ENCODER_LENGTH = 64

#: Makes values of a shape for an input that tokens say nothing of.
Others = Callable[[TokenInput, tuple[int, ...]], Array]


def token_feeds(
    interface: TokenInterface, ids: Array, others: Others, *, past: int = 0, is_hidden: bool = False
) -> dict[str, Array]:
    """Return values of all inputs for sequences that begin behind a past, or begin anew behind one that is hidden."""
    return {info.name: _value(info, ids, others, past, is_hidden) for info in interface.inputs}


def whole_feeds(interface: TokenInterface, ids: Array, others: Others) -> dict[str, Array]:
    """Return values of all inputs for sequences that begin with the model; caches of a fixed length are hidden."""
    return token_feeds(interface, ids, others, past=fixed_past(interface), is_hidden=True)


def _value(info: TokenInput, ids: Array, others: Others, past: int, is_hidden: bool) -> Array:
    batch, length = ids.shape
    if info.purpose is Purpose.IDS:
        return ids.reshape(ids.shape if len(info.shape) == 2 else -1).astype(info.dtype)
    if info.purpose is Purpose.MASK:
        return _mask(info, batch, length, past, is_hidden)
    if info.purpose is Purpose.CAUSAL_MASK:
        return _causal_mask(info, batch, length, past)
    if info.purpose is Purpose.POSITIONS:
        first = 0 if is_hidden and len(info.shape) > 1 else past  # one row for all goes on behind what is hidden, too
        leading = tuple(d or 1 for d in info.shape[:-2])  # sections of a rotary embedding, for instance
        shape = (*leading, batch, length)[-len(info.shape) :]
        return np.broadcast_to(np.arange(first, first + length), shape).astype(info.dtype)
    if info.purpose is Purpose.CACHE:
        is_seen = info.is_encoders or (past and not is_hidden)
        shape = cache_of(info, batch, ENCODER_LENGTH if info.is_encoders else past)
        return others(info, shape) if is_seen else np.zeros(shape, info.dtype)
    if info.purpose is Purpose.TYPES:
        return np.zeros((batch, length)[-len(info.shape) :], info.dtype)
    counts = {
        Purpose.USES_CACHE: past > 0, Purpose.KEPT_LOGITS: 0, Purpose.PAST_LENGTH: past, Purpose.LENGTH: length,
        Purpose.LAST_POSITION: past + length - 1, Purpose.TOTAL_LENGTH: past + length,
    }  # fmt: skip
    if info.purpose in counts:
        is_each = info.purpose in (Purpose.LAST_POSITION, Purpose.LENGTH)
        sizes = tuple(d or (batch if is_each else 1) for d in info.shape)
        return np.full(sizes, counts[info.purpose], info.dtype)
    # Free dimensions are the batch, then lengths of rows, else sizes of images.
    along = ENCODER_LENGTH if info.is_encoders or len(info.shape) > 3 else length
    return others(info, tuple(d if d is not None else along if axis else batch for axis, d in enumerate(info.shape)))


def cache_of(cache: TokenInput, batch: int, length: int) -> tuple[int, ...]:
    """Return the shape of a cache that holds a number of positions."""
    at = 1 if len(cache.shape) == 5 else 0
    free = [axis for axis, d in enumerate(cache.shape) if d is None and axis != at]
    if len(free) > 1:
        dims = ", ".join("?" if d is None else str(d) for d in cache.shape)
        raise VerificationError(
            f"the size of the cache '{cache.name}' [{dims}] is not known: "
            f"give --input-shapes {cache.name}:1,HEADS,0,SIZE"
        )
    return tuple(d if d is not None else batch if axis == at else length for axis, d in enumerate(cache.shape))


def fixed_past(interface: TokenInterface) -> int:
    """Return the number of positions that caches are fixed to hold; 0 where they may be empty."""
    lengths = {
        cache.shape[-2]
        for cache in interface.inputs_for(Purpose.CACHE)
        if not cache.is_encoders and None not in cache.shape[1:]
    }
    return lengths.pop() or 0 if len(lengths) == 1 else 0


def _mask(info: TokenInput, batch: int, length: int, past: int, is_hidden: bool) -> Array:
    along = info.shape[-1] or (ENCODER_LENGTH if info.is_encoders else past + length)
    seen = np.ones((batch, along), info.dtype)
    if is_hidden and not info.is_encoders and along == past + length:
        seen[:, :past] = 0
    return seen if len(info.shape) == 2 else seen[0]


def _causal_mask(info: TokenInput, batch: int, length: int, past: int) -> Array:
    """Return a mask over pairs of positions: true or 0 for what is seen, false or a large negative number else."""
    total = info.shape[-1] or past + length
    seen = np.tri(length, total, past, dtype=bool)
    values = (np.where(seen, 0.0, -1e4) if info.dtype.kind == "f" else seen).astype(info.dtype)
    heads = tuple(d or 1 for d in info.shape[1:-2])
    return np.broadcast_to(values, (info.shape[0] or batch, *heads, length, total)).copy()
