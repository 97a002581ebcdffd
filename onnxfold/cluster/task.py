"""A group to be partitioned, and candidates that are computed for it one width at a time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.cluster.candidates import Candidates, reconstruction_error
from onnxfold.cluster.clusterings.weight_matching import Partners
from onnxfold.cluster.duplicates import lossless_width
from onnxfold.cluster.gram import Points, Rows, centred_gram, features, require_finite
from onnxfold.cluster.partition import ChannelPartition, Labels, mean_partition
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.statistics.observe import ConsumerMoments

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
class Task:
    """One group to be partitioned."""

    graph: ComparedGraph
    group: FoldGroup
    classes: Labels  # classes of exact duplicates, shape (n_units,)
    moments: Sequence[ConsumerMoments] = ()  # moments of the consumers on some inputs; empty without a run
    narrowest: int = 1  # the smallest width that may be requested
    sources: Labels | None = None  # the network that every unit comes from, where networks are merged
    partners: Partners | None = None  # what stands for what in these networks, where the row asks for it
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

    @property
    def distinct(self) -> int:
        """The least width at which every cluster holds equal channels only."""
        return lossless_width(self.classes, self.group.blocks)


class Computed(Candidates):
    """Partitions that are computed one width at a time; errors are measured on a grid and interpolated."""

    def __init__(
        self,
        task: Task,
        compute: Callable[[Task, int], ChannelPartition],
        cluster: str,
        distinct: int | None = None,
        *,
        forgets: bool = False,
    ) -> None:
        """Take what computes a partition; it `forgets` where weights alone say the same after errors are known."""
        self.cluster, self._task, self._compute, self._forgets = cluster, task, compute, forgets
        self._distinct = task.distinct if distinct is None else distinct
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
        n, step = self._task.group.size, self._task.group.block_count
        grid = sorted({max(round(w / step), 1) * step for w in np.geomspace(step, n, _GRID)} | {self._distinct, n})
        grid_errors = [self._error(self.partition(k)) if k < n else 0.0 for k in grid]
        errors = np.interp(np.arange(n + 1), grid, np.maximum.accumulate(grid_errors[::-1])[::-1])
        errors[:step] = np.inf
        return errors

    def _error(self, partition: ChannelPartition) -> float:
        task = self._task
        if task.moments:
            return reconstruction_error(partition, task.moments)
        return task.points.of(task.classes).scatter(partition)

    def settle(self) -> None:
        """Compute the errors, and forget the moments and what was computed from weights."""
        super().settle()
        if self._forgets:
            self._task, self._is_settled = replace(self._task, moments=()), True
