r"""Channels that may go without making the parts of grouped convolutions unequal.

Every constraint cuts an axis into parts that must stay equally long. Together the constraints cut a group's channels
into *cells*: those that lie in the same part of every constraint. Where all cells of a set S lose the same number of
channels, the parts stay equal if every part of constraint q holds equally many places of S,

    sum over c in S of a[q, p, c] = t_q   for all parts p,

with a[q, p, c] the places that a channel of cell c has in part p. A channel shuffle cuts 60 channels of three groups
into nine cells of 6 or 7: all nine are in S, and 6 channels of each may be merged within their cell; the others stay.
Of all sets, the one is taken with which most channels take part.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

Index = npt.NDArray[np.int64]

#: More cells than this are not looked through.
_MOST_CELLS = 1024
#: Numbers of channels per cell that are tried, the largest first.
_MOST_SIZES = 16


def equal_cells(parts: list[tuple[Index, int]]) -> tuple[Index, Index]:
    """Return the channels that take part, and the cell of each."""
    _, cells, sizes = np.unique(
        np.concatenate([positions for positions, _ in parts], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    cells = cells.reshape(-1)
    first = np.array([np.flatnonzero(cells == c)[0] for c in range(len(sizes))])
    places = [
        np.array([np.bincount(positions[unit], minlength=count) for unit in first]).T for positions, count in parts
    ]
    best: tuple[int, int, Index] = (0, 0, np.zeros(0, np.int64))
    for size in sorted(set(sizes.tolist()), reverse=True)[:_MOST_SIZES]:
        chosen = _even(places, sizes >= size)
        if size * len(chosen) > best[0]:
            best = (size * len(chosen), size, chosen)
    _, size, chosen = best
    members = [np.flatnonzero(cells == c)[:size] for c in chosen]
    kept = np.sort(np.concatenate([np.zeros(0, np.int64), *members]))
    return kept, np.searchsorted(chosen, cells[kept])


def _even(places: list[Index], usable: npt.NDArray[np.bool_]) -> Index:
    """Return the largest set of usable cells of which every part of a constraint holds equally many places."""
    sums = [matrix[:, usable].sum(axis=1) for matrix in places]
    if all((total == total[0]).all() for total in sums):
        return np.flatnonzero(usable)
    count = len(usable)
    if count > _MOST_CELLS:
        return np.zeros(0, np.int64)

    rows = []
    for number, matrix in enumerate(places):  # places of the set in each part, less t_q
        shared = np.zeros((len(matrix), len(places)))
        shared[:, number] = -1.0
        rows.append(np.concatenate([matrix, shared], axis=1))
    most = [float(matrix.sum()) for matrix in places]
    solved = milp(
        np.concatenate([-np.ones(count), np.zeros(len(places))]),
        constraints=LinearConstraint(np.concatenate(rows), 0.0, 0.0),
        integrality=np.ones(count + len(places)),
        bounds=Bounds(0.0, np.concatenate([usable.astype(float), most])),
    )
    return np.flatnonzero(np.round(solved.x[:count])) if solved.success else np.zeros(0, np.int64)
