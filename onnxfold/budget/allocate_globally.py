"""Global allocation: narrow the groups whose consumers lose least per cost saved.

Every group has an error curve e(k), the relative error of what reads it when k channels are left. Starting from full
widths, the group is narrowed whose next step saves most, in the budgets that are exceeded, per error added; until all
budgets hold. Then groups are widened again, one channel at a time, as far as the budgets allow.
"""

from collections.abc import Callable, Sequence

import numpy as np

from onnxfold.budget.costs.lengths import Integers
from onnxfold.budget.moves import single_moves
from onnxfold.budget.requests import Budgets
from onnxfold.budget.width_space import WidthSpace
from onnxfold.graph.tensors import Matrix

#: A step narrows a group by this fraction of its full width.
_STEP = 1 / 32
#: Weight of the sum of all costs beside those that are exceeded: breaks ties where no single step lowers a peak.
_TIES = 1e-6


def allocate_globally(space: WidthSpace, errors: Sequence[Matrix], budgets: Budgets) -> list[int]:
    """Return widths within all budgets.

    Parameters
    ----------
    space : WidthSpace
        The widths that groups can have.
    errors : sequence of ndarray of shape (n + 1,)
        Error curve of every group; infinite at widths that cannot be had.
    budgets : Budgets
        What must hold.

    Raises
    ------
    BudgetError
        If even the narrowest widths exceed a budget; with the closest reachable values.
    """
    groups, steps, free = space.groups, space.steps, space.free
    curves = [convex(curve) for curve in errors]
    widths = np.array([space.fixed.get(i, group.size) for i, group in enumerate(groups)], np.int64)
    reachable = {i: np.arange(steps[i], groups[i].size + 1, steps[i]) for i in free}
    lowest = {i: int(found[np.isfinite(errors[i][found])][0]) for i, found in reachable.items()}

    def narrower(i: int, width: int) -> int:
        down = max(round(groups[i].size * _STEP / steps[i]), 1) * steps[i]
        return max((width - down) // steps[i] * steps[i], lowest[i])

    def wider(i: int, width: int) -> int:
        return width + steps[i] if width + steps[i] <= groups[i].size else width

    moves = _Moves(budgets, curves, widths, free, narrower)
    while moves.load(moves.costs_now())[0] > 1.0:
        possible = np.flatnonzero(moves.to < moves.widths)
        if not len(possible):
            raise budgets.unreachable(moves.widths.tolist())
        saved = moves.excess(moves.costs_now())[0] - moves.excess(moves.costs(possible))
        moves.take(possible[int(np.argmax(saved / np.maximum(moves.added[possible], 1e-12)))])
    moves = _Moves(budgets, curves, moves.widths, free, wider)
    while True:
        possible = np.flatnonzero(moves.to > moves.widths)
        fits = moves.load(moves.costs(possible)) <= 1.0
        if not len(possible) or not fits.any():
            return [int(w) for w in moves.widths]
        moves.take(possible[int(np.argmax(np.where(fits, -moves.added[possible], -1.0)))])


class _Moves:
    """The next move of every group: where it goes, what it costs, and what error it adds.

    Parameters
    ----------
    budgets : Budgets
        What is to hold.
    curves : sequence of ndarray of shape (n + 1,)
        Error by width.
    widths : ndarray of shape (n_groups,)
        Where to begin.
    free : sequence of int
        The groups that may move.
    target : callable
        Takes a group and its width, returns the width it would go to; the same one if there is none.
    """

    def __init__(
        self,
        budgets: Budgets,
        curves: Sequence[Matrix],
        widths: Integers,
        free: Sequence[int],
        target: Callable[[int, int], int],
    ) -> None:
        self._curves, self._target = curves, target
        self._limits = [budget.limit for budget in budgets.budgets]
        self._costs = [single_moves(budget.cost, widths.tolist()) for budget in budgets.budgets]
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

    def costs_now(self) -> list[Integers]:
        """Return the present costs, one array of one number per budget."""
        return [np.array([cost.total], np.int64) for cost in self._costs]

    def costs(self, groups: Integers) -> list[Integers]:
        """Return the costs after the next move of each of some groups, one array per budget."""
        return [cost.cost(changes[groups]) for cost, changes in zip(self._costs, self._changes, strict=True)]

    def load(self, costs: list[Integers]) -> Matrix:
        """Return cost / limit of the tightest budget, shape (m,)."""
        loads = [found / limit for found, limit in zip(costs, self._limits, strict=True)]
        count = len(costs[0]) if costs else 1
        return np.max([np.zeros(count), *loads], axis=0)  # type: ignore[no-any-return]

    def excess(self, costs: list[Integers]) -> Matrix:
        """Return how far the budgets are exceeded, summed, in units of the limits, shape (m,)."""
        total = np.zeros(len(costs[0]))
        for found, limit in zip(costs, self._limits, strict=True):
            load = found / limit
            total += np.maximum(load - 1.0, 0.0) + _TIES * load
        return total


def convex(curve: Matrix) -> Matrix:
    """Return the lower convex hull of an error curve: steps are judged by what they lead to."""
    known = np.flatnonzero(np.isfinite(curve))
    hull: list[int] = []
    for k in known.tolist():
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (curve[b] - curve[a]) * (k - a) >= (curve[k] - curve[a]) * (b - a):
                hull.pop()
            else:
                break
        hull.append(k)
    result = np.full_like(curve, np.inf)
    result[known] = np.interp(known, hull, curve[hull])
    return result
