"""Widths that lose least: take channels where they cost the consumers least for what they save.

Every group has an error curve e(k), the relative error of what reads it when k channels are left. Starting from full
widths, the group is narrowed whose next step saves most, in the budgets that are exceeded, per error added; until all
budgets hold. Then groups are widened again, one channel at a time, as far as the budgets allow.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from onnxfold.budget.allocate import width_step
from onnxfold.budget.requests import Budgets
from onnxfold.channels.group import FoldGroup
from onnxfold.graph.tensors import Matrix

#: A step narrows a group by this fraction of its full width.
_STEP = 1 / 32
#: Weight of the sum of all costs beside those that are exceeded: breaks ties where no single step lowers a peak.
_TIES = 1e-6


def allocate_globally(
    groups: Sequence[FoldGroup],
    errors: Sequence[Matrix],
    budgets: Budgets,
    fixed: Mapping[int, int],
    round_to: int = 1,
) -> list[int]:
    """Return widths within all budgets.

    Parameters
    ----------
    groups : sequence of FoldGroup
        All groups.
    errors : sequence of ndarray of shape (n + 1,)
        Error curve of every group; infinite at widths that cannot be had.
    budgets : Budgets
        What must hold.
    fixed : mapping of int to int
        Widths that must not change, by group index.
    round_to : int
        Widths are multiples of this where the group is wide enough.

    Raises
    ------
    BudgetError
        If even the narrowest widths exceed a budget; with the closest reachable values.
    """
    steps = [width_step(group, round_to) for group in groups]
    curves = [_convex(curve) for curve in errors]
    widths = np.array([fixed.get(i, group.size) for i, group in enumerate(groups)], np.int64)
    free = [i for i in range(len(groups)) if i not in fixed]
    reachable = {i: np.arange(steps[i], groups[i].size + 1, steps[i]) for i in free}
    lowest = {i: int(found[np.isfinite(errors[i][found])][0]) for i, found in reachable.items()}
    while budgets.load(widths[None])[0] > 1.0:
        moves = []
        for i in free:
            down = max(round(groups[i].size * _STEP / steps[i]), 1) * steps[i]
            to = max((int(widths[i]) - down) // steps[i] * steps[i], lowest[i])
            if to < widths[i]:
                moves.append((i, to))
        if not moves:
            raise budgets.unreachable(widths.tolist())
        trials = np.repeat(widths[None], len(moves), axis=0)
        trials[np.arange(len(moves)), [i for i, _ in moves]] = [to for _, to in moves]
        saved = _excess(budgets, widths[None])[0] - _excess(budgets, trials)
        added = np.array([curves[i][to] - curves[i][widths[i]] for i, to in moves])
        widths = trials[int(np.argmax(saved / np.maximum(added, 1e-12)))]
    return _widen(groups, curves, budgets, widths, free, steps)


def _excess(budgets: Budgets, widths: npt.NDArray[np.int64]) -> Matrix:
    """Return how far the budgets are exceeded, summed, in units of the limits, shape (m,)."""
    total = np.zeros(len(widths))
    for budget in budgets.budgets:
        load = budget.cost.many(widths) / budget.limit
        total += np.maximum(load - 1.0, 0.0) + _TIES * load
    return total


def _convex(curve: Matrix) -> Matrix:
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


def _widen(
    groups: Sequence[FoldGroup],
    curves: Sequence[Matrix],
    budgets: Budgets,
    widths: npt.NDArray[np.int64],
    free: Sequence[int],
    steps: Sequence[int],
) -> list[int]:
    while True:
        moves = [i for i in free if widths[i] + steps[i] <= groups[i].size]
        if not moves:
            return [int(w) for w in widths]
        trials = np.repeat(widths[None], len(moves), axis=0)
        trials[np.arange(len(moves)), moves] += [steps[i] for i in moves]
        fits = budgets.load(trials) <= 1.0
        if not fits.any():
            return [int(w) for w in widths]
        gained = np.array([curves[i][widths[i]] - curves[i][widths[i] + steps[i]] for i in moves])
        widths = trials[int(np.argmax(np.where(fits, gained, -1.0)))]
