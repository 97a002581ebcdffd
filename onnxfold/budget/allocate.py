"""Allocation of one width per group, from a request."""

from collections.abc import Mapping, Sequence
from math import lcm

import numpy as np

from onnxfold.budget.costs.lengths import Cost
from onnxfold.budget.moves import single_moves
from onnxfold.budget.requests import Budgets
from onnxfold.channels.group import FoldGroup
from onnxfold.errors import BudgetError, ConfigError

#: Largest distance between the requested and the reached sparsity without a note.
TOLERANCE = 0.01
_BISECTIONS = 48
_NEIGHBOUR_MOVES = 4


def width_for(group: FoldGroup, ratio: float, round_to: int = 1) -> int:
    """Return the width of a group that loses the fraction `ratio` of its channels.

    Widths are at least one per block, multiples of the number of blocks, and multiples of `round_to`
    where the group has that many channels.
    """
    if ratio <= 0.0:
        return group.size
    step = width_step(group, round_to)
    width = round((1.0 - ratio) * group.size / step) * step
    return min(max(width, step), group.size)


def width_step(group: FoldGroup, round_to: int = 1) -> int:
    """Return the number that widths of a group are multiples of."""
    step = lcm(group.block_count, round_to)
    return step if step <= group.size else group.block_count


def fixed_widths(
    groups: Sequence[FoldGroup], ratios: Mapping[str, float], keep: Sequence[str], round_to: int
) -> dict[int, int]:
    """Return the widths that the user fixed, by group index.

    Raises
    ------
    ConfigError
        If a glob matches no group.
    """
    fixed: dict[int, int] = {}
    for glob, ratio in {**ratios, **dict.fromkeys(keep, 0.0)}.items():
        found = [i for i, group in enumerate(groups) if group.matches(glob)]
        if not found:
            raise ConfigError(f"'{glob}' matches no fold group: see the names that 'onnxfold inspect' prints")
        fixed.update({i: width_for(groups[i], ratio, round_to) for i in found})
    return fixed


def uniform_widths(groups: Sequence[FoldGroup], ratio: float, fixed: Mapping[int, int], round_to: int = 1) -> list[int]:
    """Return the same channel ratio for every group that is not fixed."""
    return [fixed.get(i, width_for(group, ratio, round_to)) for i, group in enumerate(groups)]


def solve_uniform(
    groups: Sequence[FoldGroup],
    cost: Cost,
    before: int,
    sparsity: float,
    fixed: Mapping[int, int],
    round_to: int = 1,
) -> list[int]:
    """Return widths of one common channel ratio that remove a fraction of the weights.

    The ratio is found by bisection. Rounding makes the count jump where many groups change width at the same
    ratio; at that ratio groups are taken one by one.

    Parameters
    ----------
    groups : sequence of FoldGroup
        All groups.
    cost : Cost
        Weights left as a function of the widths.
    before : int
        Weights of the input model.
    sparsity : float
        Fraction to remove.
    fixed : mapping of int to int
        Widths that must not change, by group index.
    round_to : int
        See :func:`width_for`.

    Raises
    ------
    BudgetError
        If even a single channel per group leaves too much.
    """
    check_reachable(groups, cost, before, sparsity, fixed, round_to)
    target = before * (1.0 - sparsity)
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if cost(uniform_widths(groups, middle, fixed, round_to)) > target:
            low = middle
        else:
            high = middle
    wide, narrow = (uniform_widths(groups, r, fixed, round_to) for r in (low, high))
    widths = _closest_between(wide, narrow, cost, target)
    free = [i for i in range(len(groups)) if i not in fixed]
    return _closest_neighbour(widths, free, [width_step(g, round_to) for g in groups], groups, cost, target)


def check_reachable(
    groups: Sequence[FoldGroup],
    cost: Cost,
    before: int,
    sparsity: float,
    fixed: Mapping[int, int],
    round_to: int = 1,
) -> None:
    """Raise BudgetError if even the narrowest widths leave more weights than a sparsity allows.

    Parameters are those of :func:`solve_uniform`.
    """
    smallest = cost(uniform_widths(groups, 1.0, fixed, round_to))
    if smallest > before * (1.0 - sparsity + TOLERANCE):
        given = f", with the widths of {len(fixed)} of them given" if fixed else ""
        raise BudgetError(
            f"sparsity {sparsity:.3g} cannot be reached: {1 - smallest / before:.3g} is the most that the fold groups "
            f"of this model allow{given}; ask for less, or run 'onnxfold inspect' for the reasons"
        )


def uniform_within(
    groups: Sequence[FoldGroup], budgets: Budgets, fixed: Mapping[int, int], round_to: int = 1
) -> list[int]:
    """Return the widths of the smallest common channel ratio that holds all budgets.

    Raises
    ------
    BudgetError
        If even the narrowest widths exceed one; with the closest reachable values.
    """

    def fits(ratio: float) -> bool:
        return not budgets.exceeded(uniform_widths(groups, ratio, fixed, round_to))

    low, high = 0.0, 1.0
    if not fits(high):
        raise budgets.unreachable(uniform_widths(groups, high, fixed, round_to))
    if fits(low):
        return uniform_widths(groups, low, fixed, round_to)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return uniform_widths(groups, high, fixed, round_to)


def _closest_between(wide: list[int], narrow: list[int], cost: Cost, target: float) -> list[int]:
    """Take groups from `wide` to `narrow`, widest first, and stop where the cost is closest to the target."""
    moves = single_moves(cost, wide)
    order = sorted((i for i in range(len(wide)) if wide[i] != narrow[i]), key=lambda i: -wide[i])
    taken, best_distance = len(order), abs(cost(narrow) - target)
    for count in range(len(order) + 1):
        if count:
            moves.take(order[count - 1], narrow[order[count - 1]])
        distance = abs(moves.total - target)
        if distance < best_distance:
            taken, best_distance = count, distance
    chosen = list(wide)
    for i in order[:taken]:
        chosen[i] = narrow[i]
    return chosen


def _closest_neighbour(
    widths: list[int],
    free: list[int],
    steps: list[int],
    groups: Sequence[FoldGroup],
    cost: Cost,
    target: float,
) -> list[int]:
    """Move single groups by one step while that brings the cost within a tenth of the tolerance."""
    best = abs(cost(widths) - target)
    for _ in range(_NEIGHBOUR_MOVES):
        if best <= target * TOLERANCE / 10:
            break
        pairs = [(i, width) for i in free for width in (widths[i] - steps[i], widths[i] + steps[i])]
        trials = [(i, width) for i, width in pairs if steps[i] <= width <= groups[i].size]
        if not trials:
            break
        moves = single_moves(cost, widths)
        moved, to = np.array(trials, np.int64).T
        distances = np.abs(moves.cost(moves.changes(moved, to)) - target)
        closest = int(np.argmin(distances))
        if distances[closest] >= best:
            break
        best = float(distances[closest])
        widths = list(widths)
        widths[trials[closest][0]] = trials[closest][1]
    return widths
