r"""Candidates of a group: its partition and its error for every width.

Errors of groups compound. A consumer that loses the part e of its output's energy passes 1 - e of it on, and what
passes through several of them is the product, so what adds up is -log(1 - e). That is e where little is lost. But a
group that is nearly given up, as the inner channels of an inverted residual may be, then costs far more than its error
says. This counts where covariances are not sure: a few such blocks, each of them affordable by itself, make an end of a
network. Where they are sure, sums of errors tell better what to give up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.observe import ConsumerMoments
from onnxfold.statistics.samples import row_parts

#: The part of its energy that a consumer can lose at most: the estimate is not surer.
_MOST_LOST = 0.99
#: An error curve is computed at about so many widths, closer together where few channels are left.
_GRID = 12


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


class Computed(Candidates):
    """Partitions that are computed one width at a time; errors are measured on a grid and interpolated."""

    def __init__(
        self,
        group: FoldGroup,
        partition: Callable[[int], ChannelPartition],
        distinct: int,
        moments: Sequence[ConsumerMoments],
        scatter: Callable[[ChannelPartition], float],
        cluster: str,
        afterwards: Callable[[int], ChannelPartition] | None = None,
    ) -> None:
        self.cluster = cluster
        self._group = group
        self._partition, self._afterwards = partition, afterwards
        self._distinct = distinct
        self._moments = moments
        self._scatter = scatter
        self._known: dict[int, ChannelPartition] = {}

    def partition(self, k: int) -> ChannelPartition:
        """Compute a partition, once."""
        if k not in self._known:
            self._known[k] = self._partition(k)
        return self._known[k]

    @cached_property
    def errors(self) -> Matrix:  # type: ignore[override]  # computed when it is asked for
        """Monotone, linear between the widths of a grid."""
        n, step = self._group.size, self._group.block_count
        grid = sorted({max(round(w / step), 1) * step for w in np.geomspace(step, n, _GRID)} | {self._distinct, n})
        grid_errors = [self._error(self.partition(k)) if k < n else 0.0 for k in grid]
        errors = np.interp(np.arange(n + 1), grid, np.maximum.accumulate(grid_errors[::-1])[::-1])
        errors[:step] = np.inf
        return errors

    def _error(self, partition: ChannelPartition) -> float:
        return reconstruction_error(partition, self._moments) if self._moments else self._scatter(partition)

    def settle(self) -> None:
        """Compute the errors, and forget the moments and the task."""
        super().settle()
        if self._afterwards is not None:
            self._moments, self._scatter, self._partition = (), no_measure, self._afterwards


def no_measure(_: ChannelPartition) -> float:
    """Stand for a measure of weights that is not needed: there are moments, or errors are known."""
    raise AssertionError("errors are those of moments")


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
