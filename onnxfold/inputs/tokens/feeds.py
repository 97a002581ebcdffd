"""Consistent values of all inputs of a language model, for given ids."""

from collections.abc import Callable

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.interface import Part, TokenInput, TokenInterface

#: Positions of an encoder's result that a decoder reads.
ENCODER_LENGTH = 64

#: Makes values of a shape for an input that tokens say nothing of.
Others = Callable[[TokenInput, tuple[int, ...]], Array]


def token_feeds(
    interface: TokenInterface, ids: Array, others: Others, *, real: Array | None = None, past: int = 0
) -> dict[str, Array]:
    """Return values of all inputs for sequences that begin behind a past."""
    return {one.name: _value(one, ids, others, real, past) for one in interface.inputs}


def whole_feeds(interface: TokenInterface, ids: Array, others: Others) -> dict[str, Array]:
    """Return values of all inputs for sequences that begin with the model; caches of a fixed length are hidden."""
    past = fixed_past(interface)
    if not past:
        return token_feeds(interface, ids, others)
    real = np.concatenate([np.zeros((len(ids), past), np.int64), np.ones(ids.shape, np.int64)], axis=1)
    return token_feeds(interface, ids, lambda one, shape: _empty_or(one, shape, others), real=real, past=past)


def _empty_or(one: TokenInput, shape: tuple[int, ...], others: Others) -> Array:
    hidden = one.part is Part.CACHE and not one.is_encoders
    return np.zeros(shape, one.dtype) if hidden else others(one, shape)


def _value(one: TokenInput, ids: Array, others: Others, real: Array | None, past: int) -> Array:
    batch, length = ids.shape
    held = _held(one, past)
    if one.part is Part.IDS:
        return ids.reshape(ids.shape if len(one.shape) == 2 else -1).astype(one.dtype)
    if one.part is Part.MASK:
        return _mask(one, batch, length, real, past)
    if one.part is Part.CAUSAL_MASK:
        return _causal_mask(one, batch, length, past)
    if one.part is Part.POSITIONS:
        return _positions(one, batch, length, real, past)
    if one.part is Part.CACHE:
        shape = cache_of(one, batch, held)
        return np.zeros(shape, one.dtype) if not held else others(one, shape)
    if one.part is Part.TYPES:
        return np.zeros((batch, length)[-len(one.shape) :], one.dtype)
    counts = {
        Part.USES_CACHE: past > 0,
        Part.KEPT_LOGITS: 0,
        Part.PAST_LENGTH: past,
        Part.LAST_POSITION: past + length - 1,
        Part.TOTAL_LENGTH: past + length,
        Part.LENGTH: length,
    }
    if one.part in counts:
        is_each = one.part in (Part.LAST_POSITION, Part.LENGTH)
        sizes = tuple(d or (batch if is_each else 1) for d in one.shape)
        return np.full(sizes, counts[one.part], one.dtype)
    return others(one, free_shape(one, batch, length))


def free_shape(one: TokenInput, batch: int, length: int) -> tuple[int, ...]:
    """Return a shape with its free dimensions closed: the batch, then lengths of rows, else sizes of images."""
    along = ENCODER_LENGTH if one.is_encoders or len(one.shape) > 3 else length
    return tuple(d if d is not None else batch if axis == 0 else along for axis, d in enumerate(one.shape))


def cache_of(one: TokenInput, batch: int, length: int) -> tuple[int, ...]:
    """Return the shape of a cache that holds a number of positions."""
    at = 1 if len(one.shape) == 5 else 0
    free = [axis for axis, d in enumerate(one.shape) if d is None and axis != at]
    if len(free) > 1:
        dims = ", ".join("?" if d is None else str(d) for d in one.shape)
        raise VerificationError(
            f"the size of the cache '{one.name}' [{dims}] is not known: give --input-shapes {one.name}:1,HEADS,0,SIZE"
        )
    return tuple(d if d is not None else batch if axis == at else length for axis, d in enumerate(one.shape))


def _held(one: TokenInput, past: int) -> int:
    """Return how many positions a cache holds: what cross attention reads, or the past."""
    return ENCODER_LENGTH if one.part is Part.CACHE and one.is_encoders else past


def fixed_past(interface: TokenInterface) -> int:
    """Return the number of positions that caches are fixed to hold; 0 where they may be empty."""
    lengths = {one.shape[-2] for one in interface.of(Part.CACHE) if not one.is_encoders and None not in one.shape[1:]}
    return lengths.pop() or 0 if len(lengths) == 1 else 0


def _mask(one: TokenInput, batch: int, length: int, real: Array | None, past: int) -> Array:
    along = one.shape[-1] or (ENCODER_LENGTH if one.is_encoders else past + length)
    seen = np.ones((batch, along), one.dtype)
    if real is not None and not one.is_encoders and real.shape == seen.shape:
        seen = real.astype(one.dtype)
    return seen if len(one.shape) == 2 else seen[0]


def _causal_mask(one: TokenInput, batch: int, length: int, past: int) -> Array:
    """Return a mask over pairs of positions: true or 0 for what is seen, false or a large negative number else."""
    total = one.shape[-1] or past + length
    seen = np.tri(length, total, past, dtype=bool)
    values = (np.where(seen, 0.0, -1e4) if one.dtype.kind == "f" else seen).astype(one.dtype)
    heads = tuple(d or 1 for d in one.shape[1:-2])
    return np.broadcast_to(values, (one.shape[0] or batch, *heads, length, total)).copy()


def _positions(one: TokenInput, batch: int, length: int, real: Array | None, past: int) -> Array:
    row = np.arange(past, past + length)
    if len(one.shape) == 1:
        return row.astype(one.dtype)
    rows = np.broadcast_to(row, (batch, length))
    if real is not None:
        rows = np.maximum(np.cumsum(real, axis=1) - 1, 0)[:, -length:]
    leading = tuple(d or 1 for d in one.shape[:-2])  # sections of a rotary embedding, for instance
    return np.broadcast_to(rows, (*leading, *rows.shape)).astype(one.dtype)
