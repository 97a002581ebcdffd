"""Allocation of one width per group, from a request.

Groups that stay equally wide, as one group each for whoever chooses widths.

A choice of widths is a list of numbers. Where groups are tied, there are fewer numbers than groups: the search sees one
group per number, whose error is the sum of theirs, and whose width costs what theirs do together.
"""

from collections.abc import Callable, Sequence

import numpy as np

from onnxfold.budget.costs.lengths import Cost
from onnxfold.budget.moves import single_moves
from onnxfold.budget.objectives import Budgets
from onnxfold.budget.width_space import WidthSpace
from onnxfold.channels.group import FoldGroup
from onnxfold.errors import BudgetError
from onnxfold.graph.tensors import Matrix


class TiedWidths:
    """Which groups have one width: those with the same tie."""

    def __init__(self, groups: Sequence[FoldGroup]) -> None:
        keys = [("group", i) if group.rules.tie is None else ("tie", group.rules.tie) for i, group in enumerate(groups)]
        known = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        self.numbers = tuple(known[key] for key in keys)  # for every group, the number of its width
        self._members = [[i for i, own in enumerate(self.numbers) if own == number] for number in known.values()]

    def space(self, space: WidthSpace) -> WidthSpace:
        """Return the widths that the groups of each number can have."""
        first = [members[0] for members in self._members]
        lossless = [max(space.lossless[i] for i in members) for members in self._members] if space.lossless else ()
        return WidthSpace(
            [space.groups[i] for i in first],
            {number: space.fixed[i] for number, i in enumerate(first) if i in space.fixed},
            space.round_to,
            [space.preferred[i] for i in first] if space.preferred else (),
            lossless,
        )

    def errors(self, errors: Sequence[Matrix]) -> Sequence[Matrix]:
        """Return one error curve per number."""
        return [sum((errors[i] for i in members[1:]), start=errors[members[0]]) for members in self._members]

    def cost(self, cost: Cost) -> Cost:
        """Return a cost of such widths: itself where every group has a width of its own."""
        return cost if len(self._members) == len(self.numbers) else cost.renumbered(self.numbers)

    def expand_widths(self, widths: Sequence[int]) -> list[int]:
        """Return one width per group."""
        return [widths[number] for number in self.numbers]


#: Largest distance between the requested and the reached sparsity without a note.
TOLERANCE = 0.01
_BISECTIONS = 48
_NEIGHBOUR_MOVES = 4


def solve_uniform(space: WidthSpace, cost: Cost, before: int, sparsity: float) -> list[int]:
    """Return widths of one common channel ratio that remove a fraction of the weights.

    The ratio is found by bisection. Rounding makes the count jump where many groups change width at the same
    ratio; at that ratio groups are taken one by one.
    """
    require_reachable(space, cost, before, sparsity)
    target = before * (1.0 - sparsity)
    low, high = _bisect(lambda ratio: cost(space.uniform(ratio)) <= target)
    widths = _closest_between(space.uniform(low), space.uniform(high), cost, target)
    return _closest_neighbour(space, widths, cost, target)


def require_reachable(space: WidthSpace, cost: Cost, before: int, sparsity: float) -> None:
    """Raise BudgetError if even the narrowest widths leave more weights than a sparsity allows.

    Parameters are those of :func:`solve_uniform`.
    """
    smallest = cost(space.narrowest)
    if smallest > before * (1.0 - sparsity + TOLERANCE):
        condition = f", with the widths of {len(space.fixed)} of them given" if space.fixed else ""
        said = f"{1 - smallest / before:.3g} is the most that the fold groups of this model allow{condition}"
        if smallest >= before:
            said = f"no width of the fold groups makes this model smaller{condition}"
        raise BudgetError(
            f"sparsity {sparsity:.3g} cannot be reached: {said}; ask for less, "
            "or run 'onnxfold inspect' for the reasons"
        )


def uniform_within(space: WidthSpace, budgets: Budgets) -> list[int]:
    """Return the widths of the smallest common channel ratio that holds all budgets, as the narrowest widths do."""

    def fits(ratio: float) -> bool:
        return not budgets.exceeded_budgets(space.uniform(ratio))

    return space.uniform(0.0 if fits(0.0) else _bisect(fits)[1])


def _bisect(fits: Callable[[float], bool]) -> tuple[float, float]:
    """Return the channel ratios, next to each other, of which the second is the smallest that fits."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return low, high


def _closest_between(wide: list[int], narrow: list[int], cost: Cost, target: float) -> list[int]:
    """Take groups from `wide` to `narrow`, widest first, and stop where the cost is closest to the target."""
    moves = single_moves(cost, wide)
    order = sorted((i for i in range(len(wide)) if wide[i] != narrow[i]), key=lambda i: -wide[i])
    distances = [abs(moves.total - target)]
    for i in order:
        moves.take(i, narrow[i])
        distances.append(abs(moves.total - target))
    # Of counts that come equally close, all of them, or the smallest.
    count = len(order) if distances[-1] == min(distances) else distances.index(min(distances))
    passed = set(order[:count])
    return [narrow[i] if i in passed else width for i, width in enumerate(wide)]


def _closest_neighbour(space: WidthSpace, widths: list[int], cost: Cost, target: float) -> list[int]:
    """Move single groups by one step while that brings the cost within a tenth of the tolerance."""
    steps, groups, widths, moves = space.steps, space.groups, list(widths), single_moves(cost, widths)
    for _ in range(_NEIGHBOUR_MOVES):
        best = abs(moves.total - target)
        if best <= target * TOLERANCE / 10:
            break
        pairs = [(i, width) for i in space.free for width in (widths[i] - steps[i], widths[i] + steps[i])]
        trials = [(i, width) for i, width in pairs if steps[i] <= width <= groups[i].size]
        if not trials:
            break
        moved, to = np.array(trials, np.int64).T
        distances = np.abs(moves.cost(moves.changes(moved, to)) - target)
        closest = int(np.argmin(distances))
        if distances[closest] >= best:
            break
        group, width = trials[closest]
        widths[group] = width
        moves.take(group, width)
    return widths
