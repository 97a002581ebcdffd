"""Parts that the inputs of a language model play, recognised by name and by type.

Ids, masks, positions, types, caches and lengths belong together: a mask is as long as cache and ids, positions go on
where the cache ends. Here it is found out which input is what; :mod:`onnxfold.inputs.tokens.feeds` makes consistent
values of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper

from onnxfold.graph.run.session import InputInfo
from onnxfold.graph.shapes.tensor_types import Shape
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.cache_shapes import cache_shape
from onnxfold.inputs.tokens.embedding import LookUp, look_up


class Part(Enum):
    """What an input is for; the value says it in words."""

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


#: What ids that tell nothing are called in reports.
UNIFORM = "random tokens"
#: What belongs to the encoder of a model whose decoder reads it; such inputs are as long as each other.
ENCODER = re.compile(r"(^|[._/])(encoder|cross)", re.IGNORECASE)

_IDS = re.compile(
    r"(^|[./])((decoder_)?input_ids?|(input_|src_|text_)?(token_ids|tokens)|ids|word_ids)$", re.IGNORECASE
)
_INTEGERS, _FLAGS, _FLOATS = "iu", "biuf", "f"
_CACHE = re.compile(r"past|cache|(^|[._/])kv", re.IGNORECASE)
#: Name, kinds of element types, ranks, and what such an input is. The first row that fits counts.
_ROWS: tuple[tuple[re.Pattern[str], str, tuple[int, ...], Part], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kinds, ranks, part)
    for pattern, kinds, ranks, part in (
        (r"use_(past|cache)", "b", (0, 1), Part.USES_CACHE),
        (r"logits_to_keep", _INTEGERS, (0, 1), Part.KEPT_LOGITS),
        (r"total_seq", _INTEGERS, (0, 1), Part.TOTAL_LENGTH),
        (r"seqlens_k", _INTEGERS, (1, 2), Part.LAST_POSITION),
        (r"past_(key_values_|kv_)?(seq\w*_)?len", _INTEGERS, (0, 1), Part.PAST_LENGTH),
        (r"(^|[._/])seq(uence)?_?len", _INTEGERS, (0, 1), Part.LENGTH),
        (r"(token_type|segment)_?ids?", _INTEGERS, (1, 2), Part.TYPES),
        (r"position", _INTEGERS, (1, 2, 3), Part.POSITIONS),
        (r"mask", _FLAGS, (1, 2), Part.MASK),
        (r"mask", _FLAGS, (3, 4), Part.CAUSAL_MASK),
        (_CACHE.pattern, "fiu", (3, 4, 5), Part.CACHE),
        (r"inputs?_embed", _FLOATS, (3,), Part.EMBEDDED),
    )
)
#: So many inputs that are alike are named.
_SHOWN = 3
#: Parts that tell a language model where there are no token ids.
_TELLING = (Part.CACHE, Part.MASK, Part.CAUSAL_MASK)


@dataclass(frozen=True)
class TokenInput:
    """One input."""

    name: str
    part: Part
    dtype: np.dtype[np.generic]
    #: Its shape, None where a dimension is free; of a cache, the length may be free and nothing else but the batch.
    shape: tuple[int | None, ...]
    is_encoders: bool = False  # whether it belongs to an encoder whose result the model reads


@dataclass(frozen=True)
class TokenInterface:
    """All inputs of a language model."""

    inputs: tuple[TokenInput, ...]
    table: LookUp  # what is known of the tables that ids and positions are looked up in

    def of(self, *parts: Part) -> list[TokenInput]:
        """Return the inputs that are for any of these."""
        return [info for info in self.inputs if info.part in parts]

    @property
    def ids(self) -> TokenInput | None:
        """The token ids; None where embedded tokens are read in their place."""
        return next(iter(self.of(Part.IDS)), None)

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
        return next((info.shape[0] for info in self._sequences if len(info.shape) > 1), None)

    @property
    def fixed_length(self) -> int | None:
        """The length of sequences that the model is fixed to; None where it takes any."""
        return next((info.shape[-1 if len(info.shape) < 3 else 1] for info in self._sequences), None)

    def length(self, usual: int) -> int:
        """Return the length that the model is fixed to, else the usual one, or as far as its positions reach."""
        return self.fixed_length or min(usual, self.table.longest or usual)

    @property
    def _sequences(self) -> list[TokenInput]:
        return self.of(Part.IDS, Part.EMBEDDED)

    def typed(self, session_inputs: Sequence[InputInfo]) -> "TokenInterface":
        """Return the same inputs as onnxruntime takes them: a float32 twin in float32, caches with their own heads."""
        known = {info.name: info for info in session_inputs}
        return replace(self, inputs=tuple(_as_taken(declared, known.get(declared.name)) for declared in self.inputs))

    def __str__(self) -> str:
        """Return what the model takes, input by input; many that are alike are counted."""
        by_purpose: dict[str, list[TokenInput]] = {}
        for info in self.inputs:
            by_purpose.setdefault(self._words(info), []).append(info)
        return "; ".join(f"{_names(inputs)} = {words}" for words, inputs in by_purpose.items())

    def _words(self, info: TokenInput) -> str:
        if info.part is Part.IDS:
            return f"token ids below {self.vocabulary:,}"
        return f"{info.part.value} (encoder)" if info.is_encoders else info.part.value


def token_interface(view: GraphView) -> TokenInterface | None:
    """Return what the inputs of a language model are; None for any other model."""
    inputs: list[TokenInput] = []
    for name in view.input_names:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(view.elem_type(name) or 1))
        shape = view.shape(name)
        part = _part(name, dtype, shape or ()) if shape is not None else Part.OTHER
        full = cache_shape(view, name, shape or ()) if part is Part.CACHE else (shape or ())
        inputs.append(TokenInput(name, part, dtype, full, bool(ENCODER.search(name))))
    if not _has_tokens(inputs):
        inputs = _by_table(view, inputs)
    if not _has_tokens(inputs):
        return None
    ids = [info.name for info in inputs if info.part is Part.IDS]
    return TokenInterface(tuple(inputs), look_up(view, ids[0] if ids else ""))


def interface_of(infos: list[InputInfo]) -> TokenInterface | None:
    """Return what the inputs are where only their names, types and shapes are known."""
    inputs = tuple(
        TokenInput(i.name, _part(i.name, i.dtype, i.shape), i.dtype, i.shape, bool(ENCODER.search(i.name)))
        for i in infos
    )
    return TokenInterface(inputs, LookUp()) if _has_tokens(inputs) else None


def _as_taken(declared: TokenInput, info: InputInfo | None) -> TokenInput:
    if info is None:
        return declared
    sizes = info.shape if len(info.shape) == len(declared.shape) else declared.shape
    shape = tuple(old if size is None or old is None else size for old, size in zip(declared.shape, sizes, strict=True))
    return replace(declared, dtype=info.dtype, shape=shape)


def _part(name: str, dtype: np.dtype[np.generic], shape: Shape) -> Part:
    if _IDS.search(name) and dtype.kind in _INTEGERS and len(shape) in (1, 2):
        return Part.IDS
    for pattern, kinds, ranks, part in _ROWS:
        if pattern.search(name) and dtype.kind in kinds and len(shape) in ranks:
            return part
    return Part.OTHER


def _has_tokens(inputs: list[TokenInput] | tuple[TokenInput, ...]) -> bool:
    parts = {info.part for info in inputs}
    return Part.IDS in parts or (Part.EMBEDDED in parts and not parts.isdisjoint(_TELLING))


def _by_table(view: GraphView, inputs: list[TokenInput]) -> list[TokenInput]:
    """Take the one row of integers that looks up a table for token ids, whatever its name.

    Several tables are those of categories.
    """
    at = [i for i, info in enumerate(inputs) if info.part is Part.OTHER and info.dtype.kind in _INTEGERS]
    rows = [i for i in at if look_up(view, inputs[i].name).is_known]
    if len(rows) != 1 or len(inputs[rows[0]].shape) != 2 or inputs[rows[0]].shape[1] == 1:
        return inputs
    info = inputs[rows[0]]
    return [replace(other, part=Part.IDS) if other is info else other for other in inputs]


def _names(inputs: list[TokenInput]) -> str:
    names = [info.name for info in inputs]
    return ", ".join(names) if len(names) <= _SHOWN else f"{names[0]} ... {names[-1]} ({len(names)} inputs)"
