r"""Samples of channels, taken from batches of activations, and weighted by their length where they are of texts.

A few positions of a language model, its first word above all, have activations hundreds of times as long as those of
all others: behind the twelfth feed-forward layer of SmolLM2, one position in 256 has 94 % of the energy. In a sum of
squares over positions these are nearly all that counts. What a layer adds to the residual stream is read behind a norm,
though, which divides every position by its length. So a position x counts by 1 / |x|: a share of the sum that grows
with its length, not with the square. Without any share, the long ones, which all later words attend to, would be lost.

Reference: Sun et al., "Massive Activations in Large Language Models", arXiv 2402.17762.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from onnxfold.graph.tensors import Array, Matrix

Samples = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


def unit_samples(values: Array, axis: int, positions: Positions, stride: int) -> Samples:
    """Return samples of units, shape (S, n_units)."""
    width = values.shape[axis]
    if values.ndim > 2 and axis % values.ndim == 1 and positions.shape[1] == 1:  # read as they lie in memory
        return _channel_samples(values.reshape(len(values), width, prod(values.shape[2:])), positions[:, 0], stride)
    moved = np.moveaxis(values, axis, -1)
    if stride > 1:  # without a copy of everything
        places = np.arange(0, values.size // width, stride)
        moved = moved[np.unravel_index(places, moved.shape[:-1])]
    flat = moved.reshape(-1, width)
    columns = flat[:, positions.reshape(-1)].reshape(len(flat), *positions.shape)
    return np.ascontiguousarray(columns.transpose(0, 2, 1).reshape(-1, len(positions)), np.float32)


def _channel_samples(images: Array, channels: Positions, stride: int) -> Samples:
    """Return samples of channels of images, shape (images, channels, positions): shape (S, n)."""
    count, _, length = images.shape
    samples: Samples = np.empty((-(-count * length // stride), len(channels)), np.float32)
    is_whole = np.array_equal(channels, np.arange(images.shape[1]))
    place = filled = 0  # of the next sample in its image, and among all
    for image in images:
        part = image[:, place::stride]
        end = filled + part.shape[1]
        samples[filled:end] = (part if is_whole else part[channels]).T
        place, filled = place + part.shape[1] * stride - length, end
    return samples


def stride_for(batches: Sequence[Array], units: int, samples: int) -> int:
    """Return the stride at which batches of activations give about `samples` samples of `units` units."""
    return max(1, -(-(sum(part.size for part in batches) // units) // samples))


#: Products of so many samples are added up in float32; the sums of these in float64.
CHUNK = 8192
#: Matrices above this size are worked on in parts, so many rows at a time.
WIDE, PART = 4096, 512


def parts(count: int, size: int = PART) -> Iterator[slice]:
    """Yield the rows of a matrix in parts of one size, the last one perhaps smaller."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def joined(batches: Iterable[tuple[Samples, ...]]) -> Iterator[tuple[Samples, ...]]:
    """Yield the samples of batches, of small ones many together: moments of a wide layer take a pass for each."""
    waiting = list[tuple[Samples, ...]]()
    for batch in batches:
        if waiting and sum(len(first) for first, *_ in waiting) + len(batch[0]) > CHUNK:
            yield _one_batch(waiting)
            waiting.clear()
        waiting.append(batch)
    if waiting:
        yield _one_batch(waiting)


def _one_batch(batches: Sequence[tuple[Samples, ...]]) -> tuple[Samples, ...]:
    """Return several batches as one; a single one without a copy."""
    return tuple(map(np.concatenate, zip(*batches, strict=True))) if len(batches) > 1 else batches[0]


def row_parts(count: int) -> Iterator[slice]:
    """Yield the rows of a matrix, those of a wide one in parts."""
    yield from parts(count, count if 0 < count <= WIDE else PART)


#: Lengths below this part of the median are taken to be that: what is all but zero says nothing.
_SHORTEST = 1e-3

Batch = tuple[tuple[Samples, ...], Samples]


def length_factors(samples: Samples) -> Samples:
    """Return the factors of samples of shape (S, n) with which they count by 1 / |x|, shape (S, 1)."""
    with np.errstate(over="ignore"):  # what is infinite then has no weight
        lengths = np.sqrt(np.square(samples).mean(axis=1, keepdims=True, dtype=np.float64))
    shortest = _SHORTEST * float(np.median(lengths)) if len(lengths) else 0.0
    if not np.isfinite(shortest) or shortest <= 0.0:
        return np.ones_like(lengths, np.float32)
    factors: Samples = (1.0 / np.sqrt(np.maximum(lengths, shortest))).astype(np.float32)
    return factors


def weighted_means(batches: Iterable[Batch]) -> list[Samples]:
    """Return the mean of every array of a batch, each of shape (n,), in which a sample counts by its factor squared."""
    sums: list[Matrix] = []
    count = 0.0
    for arrays, factors in batches:
        weights = np.square(factors, dtype=np.float64)
        sums = sums or [np.zeros(samples.shape[1]) for samples in arrays]
        for total, samples in zip(sums, arrays, strict=True):
            total += (weights * samples).sum(axis=0)
        count += float(weights.sum())
    return [np.asarray(total / max(count, np.finfo(np.float64).tiny), np.float32) for total in sums]


def weighted_batches(batches: Callable[[], Iterator[Batch]], *, centre: bool) -> Iterator[tuple[Samples, ...]]:
    """Yield the arrays of every batch, multiplied by their factors in place."""
    means = weighted_means(batches()) if centre else []
    for arrays, factors in batches():
        for samples, mean in zip(arrays, means, strict=centre):
            samples -= mean
        for samples in arrays:
            samples *= factors
        yield arrays
