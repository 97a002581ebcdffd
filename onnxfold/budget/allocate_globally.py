"""Global allocation: narrow the groups whose consumers lose least per cost saved.

docs/mathematics.md says how.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from onnxfold.budget.allocate import TiedWidths
from onnxfold.budget.costs.lengths import Cost, Integers
from onnxfold.budget.moves import NextMoves, single_moves
from onnxfold.budget.objectives import NANOSECONDS, Budgets, Tradeoff
from onnxfold.budget.width_space import WidthSpace
from onnxfold.graph.tensors import Matrix

#: A step narrows a group by this fraction of its full width.
_STEP = 1 / 32
#: Weight of the sum of all costs beside those that are exceeded: breaks ties where no single step lowers a peak.
_TIES = 1e-6
#: Widths are relaxed where more of a limited cost is free than this part of it at full widths: a point of sparsity,
#: less what a repair may change.
_SLACK = 0.0075
_LEAST_ERROR = 1e-12
#: So many groups are tried, those that save most per error, to be narrowed further; errors must fall by this part.
_TRIES, _GAIN = 4, 1e-3
#: Shares of an objective are found to within this power of a half.
_BISECTIONS = 4


def allocate_globally(
    space: WidthSpace, errors: Sequence[Matrix], budgets: Budgets, tradeoff: Tradeoff | None = None
) -> list[int]:
    """Return widths within all budgets."""
    if tradeoff is not None:
        errors = [curve * share for curve, share in zip(errors, tradeoff.shares_of_error, strict=True)]
    tied = TiedWidths(space.groups)
    search_by = partial(_Search, tied, tied.space(space), tied.errors(errors), budgets)
    search = search_by(tradeoff)
    if tradeoff is None or tradeoff.objective.added_error == np.inf:
        return search.all_widths
    plain = search_by(None)
    bound = plain.total_error + tradeoff.objective.added_error
    if search.total_error > bound:
        search = plain
        # Bisection between no share, whose error is allowed, and the whole one, whose error is not.
        low, high = 0.0, tradeoff.share
        for _ in range(_BISECTIONS):
            share = (low + high) / 2.0
            tried = search_by(replace(tradeoff, share=share))
            if tried.total_error <= bound:
                search, low = tried, share
            else:
                high = share
    return search.all_widths


class _Search:
    """Widths that hold all budgets, by the parameters of :func:`allocate_globally`."""

    def __init__(
        self, tied: TiedWidths, space: WidthSpace, errors: Sequence[Matrix], budgets: Budgets,
        tradeoff: Tradeoff | None,
    ) -> None:  # fmt: skip
        self._tied, self._space, self._tradeoff = tied, space, tradeoff
        self._curves = [convex(curve) for curve in errors]
        self._lowest = {i: _lowest(errors[i], space.ladders[i][-1]) for i in space.free}
        self._limits = [budget.limit for budget in budgets.budgets]
        costs = [budget.cost for budget in budgets.budgets]
        if tradeoff is not None:
            costs += [tradeoff.weights, tradeoff.running]
        self._costs: list[Cost] = [tied.cost(cost) for cost in costs]
        full = [group.size for group in space.groups]
        self._sizes = np.array(full, np.int64)
        self.widths: Integers = np.array([space.fixed.get(i, size) for i, size in enumerate(full)], np.int64)
        self._single = [single_moves(cost, full) for cost in self._costs]
        self._whole = [moves.total for moves in self._single]
        lossless = np.array([space.fixed.get(i, width) for i, width in enumerate(space.lossless)], np.int64)
        if space.preferred and len(lossless) and self._load(self._costs_of(lossless))[0] <= 1.0:
            self.widths = lossless  # nothing need be lost
        for level in range(space.levels):  # groups relax where nothing else is left to narrow
            self.widths = self._narrow(self.widths, level, _STEP)
            if self._load(self._costs_of(self.widths))[0] <= 1.0:
                break
        else:
            raise budgets.unreachable(self.all_widths)
        self.widths = self._widen(self.widths)
        while tradeoff is None and (better := self._improve()) is not None:
            self.widths = better
        # Odd widths take time, and none of it should be used up.
        if not any(budget.unit == NANOSECONDS for budget in budgets.budgets):
            self._relax()

    @property
    def all_widths(self) -> list[int]:
        """One width per group, of the tied ones, too."""
        return self._tied.expand_widths(self.widths.tolist())

    @property
    def total_error(self) -> float:
        """Sum of the errors of the groups that may change their widths."""
        return self._error_of(self.widths)

    def _error_of(self, widths: Integers) -> float:
        return float(sum(self._curves[i][widths[i]] for i in self._space.free))

    def _narrow(self, widths: Integers, level: int, fraction: float, but: int = -1) -> Integers:
        """Return widths that are narrowed until all budgets hold or none can be narrowed; one group may stay."""
        moves = self._narrowing(widths, level, fraction, but)
        while self._load(moves.present_costs())[0] > 1.0 and len(possible := moves.movable):
            moves.take(possible[self._next_to_narrow(moves, possible)])
        return moves.widths

    def _next_to_narrow(self, moves: NextMoves, possible: Integers) -> int:
        now, after = moves.present_costs(), moves.next_costs(possible)
        added = np.maximum(moves.added[possible], _LEAST_ERROR)
        best = int(np.argmax((self._excess(now) - self._excess(after)) / added))
        if self._tradeoff is None or self._lead(now)[0] >= 0.0:
            return best
        row = self._tradeoff.objective
        lighter, faster = ((now[i] - after[i]) / max(self._whole[i], 1) / added for i in (-2, -1))
        cut = (moves.widths[possible] - moves.to[possible]) / self._sizes[possible]
        catches_up = (self._lead(after) >= self._lead(now)) & (cut <= row.largest_cut)
        faster = np.where(catches_up, faster, -1.0)
        fastest = int(np.argmax(faster))
        return fastest if catches_up[fastest] and faster[fastest] * row.price >= lighter.max() else best

    def _widen(self, widths: Integers, but: int = -1) -> Integers:
        """Return wider widths, as far as the budgets allow, unless running falls behind; one group may stay."""
        moves = self._moves(lambda i, width: width if i == but else self._space.wider(i, width, 0), widths)
        while len(possible := moves.movable):
            now, after = moves.present_costs(), moves.next_costs(possible)
            fits = (self._load(after) <= 1.0) & (self._lead(after) >= np.minimum(self._lead(now), 0.0))
            if not fits.any():
                break
            moves.take(possible[int(np.argmax(np.where(fits, -moves.added[possible], -1.0)))])
        return moves.widths

    def _improve(self) -> Integers | None:
        """Return the widths with a group narrower by a step and others wider, where this lowers the error."""
        moves = self._narrowing(self.widths, 0, _STEP)
        possible = moves.movable
        if not self._limits or not len(possible) or self._load(moves.present_costs())[0] > 1.0:
            return None
        saved = self._loads(moves.present_costs()).sum(axis=0) - self._loads(moves.next_costs(possible)).sum(axis=0)
        order = np.argsort(-saved / np.maximum(moves.added[possible], _LEAST_ERROR), kind="stable")
        bound = self.total_error * (1.0 - _GAIN)
        for i in possible[order[:_TRIES]].tolist():
            widths = self.widths.copy()
            widths[i] = moves.to[i]
            widths = self._widen(self._widen(widths, but=i))
            if self._error_of(widths) < bound:
                return widths
        return None

    def _relax(self) -> None:
        """Use the budgets up to a point: by whatever steps, the cheapest first, then by exchanges."""
        for level in range(self._space.levels):
            self.widths = self._fill(self.widths, level)
        for level in range(self._space.levels):
            while self._has_slack(self._costs_of(self.widths)) and (better := self._exchange(level)) is not None:
                self.widths = better

    def _fill(self, widths: Integers, level: int) -> Integers:
        """Return widths that are widened while more than a point is free."""
        moves = self._moves(lambda i, width: self._space.wider(i, width, level), widths)
        while self._has_slack(moves.present_costs()) and len(possible := moves.movable):
            now, after = moves.present_costs(), moves.next_costs(possible)
            gained = self._used_share(after) - self._used_share(now)
            price = moves.added[possible] if self._tradeoff is None else (after[-1] - now[-1]).astype(np.float64)
            fits = (self._load(after) <= 1.0) & (gained > 0.0)
            if not fits.any():
                break
            moves.take(possible[int(np.argmin(np.where(fits, price / np.where(fits, gained, 1.0), np.inf)))])
        return moves.widths

    def _exchange(self, level: int) -> Integers | None:
        """Return widths that use more of the budgets and lose no more: a group a step wider, others narrower."""
        used, error = self._used_share(self._costs_of(self.widths))[0], self.total_error
        options: list[tuple[float, int, Integers]] = []
        for i in self._space.free:
            widths = self.widths.copy()
            widths[i] = self._space.wider(i, int(widths[i]), level)
            widths = self._fill(self._narrow(widths, level, 0.0, but=i), level)
            costs = self._costs_of(widths)
            added = self._error_of(widths) - error
            if self._load(costs)[0] <= 1.0 and self._used_share(costs)[0] > used and added <= 0.0:
                options.append((added if self._tradeoff is None else float(costs[-1][0]), i, widths))
        return min(options, key=lambda option: option[:2])[2] if options else None

    def _narrowing(self, widths: Integers, level: int, fraction: float, but: int = -1) -> NextMoves:
        """Return the next step of every group to a narrower width; one group may stay."""

        def narrower(i: int, width: int) -> int:
            next_width = self._space.narrower(i, width, level, fraction)
            if fraction and width == self._space.groups[i].size and self._space.groups[i].seam.widest:
                next_width = min(next_width, self._worthwhile(i, self._space.step(i, level)))
            return width if i == but else min(max(next_width, self._lowest[i]), width)

        return self._moves(narrower, widths)

    def _worthwhile(self, i: int, step: int) -> int:
        """Return the width that saves most per error of a group that costs more as soon as it is not whole."""
        widths = np.arange(step, self._space.groups[i].seam.widest + 1, step)
        if not len(widths):
            return self._space.groups[i].size
        saved = self._space.groups[i].seam.widest + 1 - widths
        return int(widths[np.argmax(saved / np.maximum(self._curves[i][widths], _LEAST_ERROR))])

    def _moves(self, target: Callable[[int, int], int], widths: Integers) -> NextMoves:
        return NextMoves(self._single, self._curves, widths, self._space.free, target)

    def _costs_of(self, widths: Integers) -> list[Integers]:
        """Return all costs of some widths, one array of one number each."""
        return [cost.many(widths[None]) for cost in self._costs]

    def _lead(self, costs: list[Integers]) -> Matrix:
        """Return how far an objective is ahead, see :meth:`Tradeoff.lead`; 0 without an objective; shape (m,)."""
        if self._tradeoff is None:
            return np.zeros(len(costs[0]))
        pairs = zip(costs[-2:], self._whole[-2:], strict=True)
        return self._tradeoff.lead(*(1.0 - cost / max(whole, 1) for cost, whole in pairs))

    def _loads(self, costs: list[Integers]) -> Matrix:
        """Return cost / limit of every budget, shape (n_budgets + 1, m); the first row is that of no budget."""
        loads = [cost / limit for cost, limit in zip(costs, self._limits, strict=False)]
        return np.array([np.zeros(len(costs[0]) if costs else 1), *loads])

    def _load(self, costs: list[Integers]) -> Matrix:
        """Return cost / limit of the tightest budget, shape (m,)."""
        return self._loads(costs).max(axis=0)  # type: ignore[no-any-return]

    def _excess(self, costs: list[Integers]) -> Matrix:
        """Return how far the budgets are exceeded, summed, in units of the limits, shape (m,)."""
        loads = self._loads(costs)
        return (np.maximum(loads - 1.0, 0.0) + _TIES * loads).sum(axis=0)  # type: ignore[no-any-return]

    def _used_share(self, costs: list[Integers]) -> Matrix:
        """Return the part of the budget with least room that is used, in units of its cost at full widths."""
        pairs = zip(costs, self._limits, self._whole, strict=False)
        return np.max([(cost - limit) / max(whole, 1) for cost, limit, whole in pairs], axis=0)  # type: ignore[no-any-return]

    def _has_slack(self, costs: list[Integers]) -> bool:
        return bool(self._limits) and bool(self._used_share(costs)[0] < -_SLACK)


def _lowest(errors: Matrix, step: int) -> int:
    """Return the narrowest multiple of a step that can be had."""
    reachable = np.arange(step, len(errors), step)
    return int(reachable[np.isfinite(errors[reachable])][0])


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
