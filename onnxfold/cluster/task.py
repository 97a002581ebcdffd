"""A group to be partitioned, and its candidates: its partition and its error for every width.

Errors of groups compound. A consumer that loses the part e of its output's energy passes 1 - e of it on, and what
passes through several of them is the product, so what adds up is -log(1 - e). That is e where little is lost. But a
group that is nearly given up, as the inner channels of an inverted residual may be, then costs far more than its error
says. This counts where covariances are not sure: a few such blocks, each of them affordable by itself, make an end of a
network. Where they are sure, sums of errors tell better what to give up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.clusterings.weight_matching import Partners
from onnxfold.cluster.duplicates import lossless_width
from onnxfold.cluster.gram import Points, Rows, centred_gram, features, require_finite
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.statistics.observe import ConsumerMoments
from onnxfold.statistics.samples import row_parts

#: The part of its energy that a consumer can lose at most: the estimate is not surer.
_MOST_LOST = 0.99
#: An error curve is computed at about so many widths, closer together where few channels are left.
_GRID = 12


@dataclass(frozen=True, eq=False)
class ComparedGraph:
    """A graph whose groups are to be partitioned, and what is known of all of them."""

    view: GraphView  # the graph whose weights are compared, columns of duplicates added up
    stored: GraphView  # the graph as it is stored
    with_deviation: bool = False  # whether running variances are compared, too; for rows that are not normalised
    merges: bool = True  # whether elimination may merge channels that are not equal
    words: Matrix | None = None  # how common every token is, of a language model, shape (rows,)


@dataclass(frozen=True, eq=False)
class Sources:
    """Where the units of a group come from, where networks are merged."""

    networks: Labels | None = None  # the network of every unit
    partners: Partners | None = None  # what stands for what in these networks, where the method asks for it


@dataclass(frozen=True, eq=False)
class Task:
    """One group to be partitioned."""

    graph: ComparedGraph
    group: FoldGroup
    classes: Labels  # classes of exact duplicates, shape (n_units,)
    moments: Sequence[ConsumerMoments] = ()  # moments of the consumers on some inputs; empty without a run
    narrowest: int = 1  # the smallest width that may be requested
    sources: Sources = Sources()
    metric: Matrix | None = None  # what errors of the channels do to the outputs of the network

    @cached_property
    def points(self) -> Points:
        """One point per class of duplicates: mean of what produces it, sum of what consumes it."""
        merge = mean_partition(self.classes)

        def blocks() -> Iterator[Rows]:
            for role, rows in features(self.graph.view, self.group, with_deviation=self.graph.with_deviation):
                if merge.is_identity:
                    yield rows
                else:
                    matrix = merge.decode.T if role is Role.CONSUMER else merge.encode
                    yield matrix.astype(rows.dtype) @ rows

        gram = centred_gram(blocks())
        require_finite(self.group, gram)
        return Points(gram)


class Candidates(ABC):
    """The partitions of one group, one per width."""

    #: Name of the clustering: a row of :data:`onnxfold.cluster.partitioners.PARTITIONERS`.
    cluster: str
    #: The relative error of the group's consumers for k remaining channels, shape (n + 1,); infinite below one.
    errors: Matrix
    #: What the network loses by width, where that is something else.
    own_losses: Matrix | None = None

    @abstractmethod
    def partition(self, k: int) -> ChannelPartition:
        """Return the partition into k clusters, a multiple of the group's blocks."""

    @property
    def losses(self) -> Matrix:
        """Losses of the network by width, shape (n + 1,)."""
        return self.errors if self.own_losses is None else self.own_losses

    def settle(self) -> None:
        """Compute the errors, and give up what they are computed from: of a wide layer, matrices as large as it."""
        _ = self.errors


class Weighted(Candidates):
    """Candidates that come from unsure covariances; their errors count by what they do to the outputs."""

    def __init__(self, plain: Candidates, factor: float) -> None:
        self.plain, self.cluster = plain, plain.cluster
        self.errors = plain.errors * factor
        self.own_losses = compound_errors(plain.errors) * factor

    def partition(self, k: int) -> ChannelPartition:
        """Return that of the candidates."""
        return self.plain.partition(k)


def compound_errors(errors: Matrix) -> Matrix:
    """Return -c log(1 - e / c) for errors e, each the sum over c consumers; infinite where they are."""
    finite = np.isfinite(errors)
    consumers = float(errors[finite].max(initial=1.0))
    part = np.where(finite, errors, 0.0) / consumers
    return np.where(finite, -consumers * np.log1p(-_MOST_LOST * part), np.inf)


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


class Computed(Candidates):
    """Partitions that are computed one width at a time; errors are measured on a grid and interpolated."""

    def __init__(
        self, task: Task, compute: Callable[[Task, int], ChannelPartition], cluster: str, distinct: int | None = None,
        *, forgets: bool = False,
    ) -> None:  # fmt: skip
        """Take what computes a partition; it `forgets` where weights alone say the same after errors are known."""
        self.cluster, self._task, self._compute, self._forgets = cluster, task, compute, forgets
        self._distinct = lossless_width(task.group, task.classes) if distinct is None else distinct
        self._is_settled = False
        self._known: dict[int, ChannelPartition] = {}

    def partition(self, k: int) -> ChannelPartition:
        """Compute a partition, once."""
        if k not in self._known:
            # A copy keeps nothing of what it computes.
            self._known[k] = self._compute(replace(self._task) if self._is_settled else self._task, k)
        return self._known[k]

    @cached_property
    def errors(self) -> Matrix:  # type: ignore[override]  # computed when it is asked for
        """Monotone, linear between the widths of a grid."""
        task = self._task
        n, step = task.group.size, task.group.block_count
        grid = sorted({max(round(w / step), 1) * step for w in np.geomspace(step, n, _GRID)} | {self._distinct, n})
        points = None if task.moments else task.points.of(task.classes)
        parts = [self.partition(k) for k in grid if k < n]
        measured = [reconstruction_error(p, task.moments) if points is None else points.scatter(p) for p in parts]
        errors = np.interp(np.arange(n + 1), grid, np.maximum.accumulate([0.0, *measured[::-1]])[::-1])
        errors[:step] = np.inf
        return errors

    def settle(self) -> None:
        """Compute the errors, and forget the moments and what was computed from weights."""
        super().settle()
        if self._forgets:
            self._task, self._is_settled = replace(self._task, moments=()), True
