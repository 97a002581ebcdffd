"""The next move of every group: where it goes, what it costs, and what error it adds."""

from collections.abc import Callable, Sequence

import numpy as np

from onnxfold.budget.costs.lengths import Cost, Integers
from onnxfold.budget.moves import single_moves
from onnxfold.graph.tensors import Matrix


class NextMoves:
    """One move per group, kept up to date while moves are taken."""

    def __init__(
        self,
        costs: Sequence[Cost],
        curves: Sequence[Matrix],
        widths: Integers,
        free: Sequence[int],
        target: Callable[[int, int], int],
    ) -> None:
        self._curves, self._target = curves, target
        self._costs = [single_moves(cost, widths.tolist()) for cost in costs]
        self.widths = widths.copy()
        self.to = widths.copy()
        self.added = np.zeros(len(widths))
        for i in free:
            self._aim(i)
        everyone = np.arange(len(widths))
        self._changes = [cost.changes(everyone, self.to) for cost in self._costs]

    def _aim(self, i: int) -> None:
        width = int(self.widths[i])
        self.to[i] = self._target(i, width)
        self.added[i] = self._curves[i][self.to[i]] - self._curves[i][width]

    def take(self, i: int) -> None:
        """Move a group, and see to the moves that cost something else from now on."""
        self.widths[i] = width = self.to[i]
        self._aim(i)
        for cost, changes in zip(self._costs, self._changes, strict=True):
            affected = cost.take(i, int(width))
            changes[affected] = cost.changes(affected, self.to[affected])

    @property
    def movable(self) -> Integers:
        """The groups that can move."""
        return np.flatnonzero(self.to != self.widths)

    def present_costs(self) -> list[Integers]:
        """Return the present costs, one array of one number each."""
        return [np.array([cost.total], np.int64) for cost in self._costs]

    def next_costs(self, groups: Integers) -> list[Integers]:
        """Return the costs after the next move of each of some groups, one array per cost."""
        return [cost.cost(changes[groups]) for cost, changes in zip(self._costs, self._changes, strict=True)]
