"""Consistent values of all inputs of a language model, for given ids."""

from collections.abc import Callable

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.graph.tensors import Array
from onnxfold.inputs.tokens.interface import Purpose, TokenInput, TokenInterface

#: Positions of an encoder's result that a decoder reads.
ENCODER_LENGTH = 64

#: Makes values of a shape for an input that tokens say nothing of.
Others = Callable[[TokenInput, tuple[int, ...]], Array]


def token_feeds(
    interface: TokenInterface, ids: Array, others: Others, *, real: Array | None = None, past: int = 0
) -> dict[str, Array]:
    """Return values of all inputs for sequences that begin behind a past."""
    return {info.name: _value(info, ids, others, real, past) for info in interface.inputs}


def whole_feeds(interface: TokenInterface, ids: Array, others: Others) -> dict[str, Array]:
    """Return values of all inputs for sequences that begin with the model; caches of a fixed length are hidden."""
    past = fixed_past(interface)
    if not past:
        return token_feeds(interface, ids, others)
    real = np.concatenate([np.zeros((len(ids), past), np.int64), np.ones(ids.shape, np.int64)], axis=1)

    def hidden(info: TokenInput, shape: tuple[int, ...]) -> Array:
        is_cache = info.purpose is Purpose.CACHE and not info.is_encoders
        return np.zeros(shape, info.dtype) if is_cache else others(info, shape)

    return token_feeds(interface, ids, hidden, real=real, past=past)


def _value(info: TokenInput, ids: Array, others: Others, real: Array | None, past: int) -> Array:
    batch, length = ids.shape
    if info.purpose is Purpose.IDS:
        return ids.reshape(ids.shape if len(info.shape) == 2 else -1).astype(info.dtype)
    if info.purpose is Purpose.MASK:
        return _mask(info, batch, length, real, past)
    if info.purpose is Purpose.CAUSAL_MASK:
        return _causal_mask(info, batch, length, past)
    if info.purpose is Purpose.POSITIONS:
        return _positions(info, batch, length, real, past)
    if info.purpose is Purpose.CACHE:
        held = ENCODER_LENGTH if info.is_encoders else past  # what cross attention reads, or the past
        shape = cache_of(info, batch, held)
        return np.zeros(shape, info.dtype) if not held else others(info, shape)
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


def _mask(info: TokenInput, batch: int, length: int, real: Array | None, past: int) -> Array:
    along = info.shape[-1] or (ENCODER_LENGTH if info.is_encoders else past + length)
    seen = np.ones((batch, along), info.dtype)
    if real is not None and not info.is_encoders and real.shape == seen.shape:
        seen = real.astype(info.dtype)
    return seen if len(info.shape) == 2 else seen[0]


def _causal_mask(info: TokenInput, batch: int, length: int, past: int) -> Array:
    """Return a mask over pairs of positions: true or 0 for what is seen, false or a large negative number else."""
    total = info.shape[-1] or past + length
    seen = np.tri(length, total, past, dtype=bool)
    values = (np.where(seen, 0.0, -1e4) if info.dtype.kind == "f" else seen).astype(info.dtype)
    heads = tuple(d or 1 for d in info.shape[1:-2])
    return np.broadcast_to(values, (info.shape[0] or batch, *heads, length, total)).copy()


def _positions(info: TokenInput, batch: int, length: int, real: Array | None, past: int) -> Array:
    row = np.arange(past, past + length)
    if len(info.shape) == 1:
        return row.astype(info.dtype)
    rows = np.broadcast_to(row, (batch, length))
    if real is not None:
        rows = np.maximum(np.cumsum(real, axis=1) - 1, 0)[:, -length:]
    leading = tuple(d or 1 for d in info.shape[:-2])  # sections of a rotary embedding, for instance
    return np.broadcast_to(rows, (*leading, *rows.shape)).astype(info.dtype)
