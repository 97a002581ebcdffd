r"""Positions of texts, weighted by their length.

A few positions of a language model, its first word above all, have activations hundreds of times as long as those of
all others: behind the twelfth feed-forward layer of SmolLM2, one position in 256 has 94 % of the energy. In a sum of
squares over positions these are nearly all that counts. What a layer adds to the residual stream is read behind a norm,
though, which divides every position by its length. So a position x counts by 1 / |x|: a share of the sum that grows
with its length, not with the square. Without any share, the long ones, which all later words attend to, would be lost.

References
----------
Sun et al., "Massive Activations in Large Language Models", arXiv 2402.17762.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.samples import Samples

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
