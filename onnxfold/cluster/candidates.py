r"""Candidates of a group: its partition and its error for every width.

Errors of groups compound. A consumer that loses the part e of its output's energy passes 1 - e of it on, and what
passes through several of them is the product, so what adds up is -log(1 - e). That is e where little is lost. But a
group that is nearly given up, as the inner channels of an inverted residual may be, then costs far more than its error
says. This counts where covariances are not sure: a few such blocks, each of them affordable by itself, make an end of a
network. Where they are sure, sums of errors tell better what to give up.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from onnxfold.cluster.partition import ChannelPartition
from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.observe import ConsumerMoments
from onnxfold.statistics.samples import row_parts

#: The part of its energy that a consumer can lose at most: the estimate is not surer.
_MOST_LOST = 0.99


class Candidates(ABC):
    """The partitions of one group, one per width."""

    #: Name of the clustering: a row of :data:`onnxfold.cluster.partitioners.PARTITIONERS`.
    cluster: str
    #: The relative error of the group's consumers for k remaining channels, shape (n + 1,); infinite below one.
    errors: Matrix

    @abstractmethod
    def partition(self, k: int) -> ChannelPartition:
        """Return the partition into k clusters, a multiple of the group's blocks."""

    @property
    def losses(self) -> Matrix:
        """Losses of the network by width, shape (n + 1,)."""
        return self.errors

    def settle(self) -> None:
        """Compute the errors, and give up what they are computed from: of a wide layer, matrices as large as it."""
        _ = self.errors


class Weighted(Candidates):
    """Candidates that come from unsure covariances; their errors count by what they do to the outputs."""

    def __init__(self, plain: Candidates, factor: float) -> None:
        self.plain, self.cluster = plain, plain.cluster
        self.errors = plain.errors * factor
        self._losses = compound_errors(plain.errors) * factor

    @property
    def losses(self) -> Matrix:
        """The errors, compounded and multiplied."""
        return self._losses

    def partition(self, k: int) -> ChannelPartition:
        """Return that of the candidates."""
        return self.plain.partition(k)


def compound_errors(errors: Matrix) -> Matrix:
    """Return -c log(1 - e / c) for errors e, each the sum over c consumers; infinite where they are."""
    finite = np.isfinite(errors)
    if not finite.any():
        return errors
    consumers = max(float(errors[finite].max()), 1.0)
    part = np.where(finite, errors, 0.0) / consumers
    losses: Matrix = np.where(finite, -consumers * np.log1p(-_MOST_LOST * part), np.inf)
    return losses


def reconstruction_error(partition: ChannelPartition, moments: Sequence[ConsumerMoments]) -> float:
    """Return the part of the consumers' output energy that the best linear estimate of x from P x misses, summed.

    trace(G (C - C P^T (P C P^T)^-1 P C)) / trace(G C) for every consumer.
    """
    total = 0.0
    for seen in moments:
        energy = seen.energy
        if not np.isfinite(energy) or energy <= 0.0:
            continue
        cross, inner = partition.encode_moments(seen.trusted)
        inner[np.diag_indices_from(inner)] += 1e-6 * max(np.trace(inner) / len(inner), np.finfo(np.float64).tiny)
        solved = np.linalg.solve(inner, cross)
        missed = 0.0
        for rows in row_parts(len(seen.gram)):
            explained = cross[:, rows].T @ solved
            missed += float((seen.gram[rows] * (seen.trusted[rows] - explained)).sum())
        total += max(missed / energy, 0.0)
    return total
