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

from collections.abc import Iterable

import numpy as np

from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.samples import Samples

#: Lengths below this part of the median are taken to be that: what is all but zero says nothing.
_SHORTEST = 1e-3


def length_factors(samples: Samples) -> Samples:
    """Return what samples of shape (S, n) are multiplied by so that they count by 1 / |x|, shape (S, 1)."""
    with np.errstate(over="ignore"):  # what is infinite then has no weight
        lengths = np.sqrt(np.square(samples).mean(axis=1, keepdims=True, dtype=np.float64))
    shortest = _SHORTEST * float(np.median(lengths)) if len(lengths) else 0.0
    if not np.isfinite(shortest) or shortest <= 0.0:
        return np.ones_like(lengths, np.float32)
    found: Samples = (1.0 / np.sqrt(np.maximum(lengths, shortest))).astype(np.float32)
    return found


class WeightedMean:
    """Mean of samples, each counted by the square of its factor."""

    def __init__(self) -> None:
        self._sum: Matrix | float = 0.0
        self._count = 0.0

    def add(self, samples: Samples, factors: Samples) -> None:
        """Add samples of shape (S, n), and their factors, shape (S, 1)."""
        weights = np.square(factors, dtype=np.float64)
        self._sum = self._sum + (weights * samples).sum(axis=0)
        self._count += float(weights.sum())

    @property
    def value(self) -> Samples:
        """The mean, shape (n,)."""
        mean: Samples = np.asarray(self._sum / max(self._count, np.finfo(np.float64).tiny), np.float32)
        return mean


def weighted_mean(batches: Iterable[Samples]) -> Samples:
    """Return the mean of batches of samples, shape (n,), in which a sample counts by 1 / |x|."""
    mean = WeightedMean()
    for samples in batches:
        mean.add(samples, length_factors(samples))
    return mean.value
