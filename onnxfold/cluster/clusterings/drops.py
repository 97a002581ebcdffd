r"""Elimination by drops alone, many of them applied in one product.

Where channels are dropped and never merged, all that the next choice needs are the diagonals of C^-1 and G
(:mod:`onnxfold.cluster.clusterings.elimination`), and the columns of what is dropped. With the columns A = C^-1 U and
B = G U of the channels U that go, V = A (U^T A)^-1 and W = B - V (U^T B) / 2,

    C^-1 -> C^-1 - A V^T,      G -> G - V W^T - W V^T,

and as long as A, V and W are kept, columns and diagonals follow from them. A wide layer's matrices are read and written
once for so many channels, not once per step.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from onnxfold.cluster.partition import Labels
from onnxfold.statistics.samples import parts, row_parts

#: So many channels are dropped before the matrices are brought up to date, and so many rows at a time.
_WAITING, _PART = 512, 512

#: Matrices in the type that they are kept in.
Kept = npt.NDArray[np.floating]


class Drops:
    """C^-1 and G of every consumer, over the units that are left, none of which are merged any more."""

    def __init__(self, units: Labels, grams: Sequence[Kept], precisions: Sequence[Kept]) -> None:
        #: Where in the matrices the units are, which are kept in order.
        self._places = np.argsort(units)
        self.units = units[self._places]
        self._of = [_Waiting(gram, precision) for gram, precision in zip(grams, precisions, strict=True)]

    def cheapest(self, inside: npt.NDArray[np.bool_], count: int) -> list[tuple[int, int]]:
        """Return up to `count` drops (gone, -1) of units inside, the cheapest first."""
        units = np.flatnonzero(inside)
        places = self._places[units]
        total = np.zeros(len(places))
        for consumer in self._of:
            total += consumer.lost[places] / consumer.certain[places]
        order = [int(total.argmin())] if count == 1 else np.argsort(total, kind="stable")[:count].tolist()
        return [(int(unit), -1) for unit in self.units[units[order]]]

    def give_up(self, steps: Sequence[tuple[int, int]]) -> float:
        """Drop some units; return what that costs."""
        if any(consumer.is_full(len(steps)) for consumer in self._of):
            for consumer in self._of:
                consumer.settle(self._places)
            self._places = np.arange(len(self.units))
        gone = np.searchsorted(self.units, [unit for unit, _ in steps])
        cost = sum(consumer.give_up(self._places[gone]) for consumer in self._of)
        self.units, self._places = np.delete(self.units, gone), np.delete(self._places, gone)
        return cost


class _Waiting:
    """The matrices of one consumer as they were, and what is to be taken off them."""

    def __init__(self, gram: Kept, precision: Kept) -> None:
        self._gram, self._precision = gram, precision
        self._tell()
        #: How many channels were dropped since the matrices were up to date, and their A, V and W, transposed.
        self._waiting = 0
        self._panels: tuple[Kept, ...] = ()

    def _tell(self) -> None:
        #: The diagonals of C^-1 and G as they are, each of shape (n,).
        self.certain, self.lost = (m.diagonal().astype(np.float64) for m in (self._precision, self._gram))

    def is_full(self, count: int) -> bool:
        """Whether the matrices are to be brought up to date before so many more channels are dropped."""
        return self._waiting > 0 and self._waiting + count > len(self._panels[0])

    def give_up(self, places: Labels) -> float:
        """Drop the channels at some places of the matrices; return what that costs."""
        if not self._waiting:
            rows = min(max(_WAITING, len(places)), len(self._gram))
            self._panels = tuple(np.empty((rows, len(self._gram)), self._gram.dtype) for _ in range(3))
        before, after = slice(self._waiting), slice(self._waiting, self._waiting + len(places))
        a, v, w = self._panels
        of_v, of_w = v[before, places].T, w[before, places].T
        certain, lost = self._precision[places], self._gram[places]
        certain -= of_v @ a[before]
        lost -= of_v @ w[before]
        lost -= of_w @ v[before]
        inner, inside = np.linalg.inv(certain[:, places]), lost[:, places]
        a[after] = certain
        np.matmul(inner, certain, out=v[after])
        lost -= 0.5 * (inside @ v[after])
        w[after] = lost
        self.certain -= np.einsum("ij,ij->j", a[after], v[after])
        self.lost -= 2.0 * np.einsum("ij,ij->j", v[after], w[after])
        self._waiting += len(places)
        return float(np.einsum("ij,ji->", inside, inner))

    def settle(self, left: Labels) -> None:
        """Bring the matrices up to date, over the places that are left."""
        a, v, w = (np.ascontiguousarray(panel[: self._waiting, left].T) for panel in self._panels)
        self._gram, self._precision = (_keep_units(matrix, left) for matrix in (self._gram, self._precision))
        for rows in parts(len(left), _PART):
            self._precision[rows, : rows.stop] -= v[rows] @ a[: rows.stop].T
            self._gram[rows, : rows.stop] -= v[rows] @ w[: rows.stop].T
            self._gram[rows, : rows.stop] -= w[rows] @ v[: rows.stop].T
            for matrix in (self._gram, self._precision):
                matrix[: rows.start, rows] = matrix[rows, : rows.start].T
        self._tell()
        self._waiting = 0


def _keep_units(matrix: Kept, left: Labels) -> Kept:
    """Return some rows and columns of a matrix, in its memory, which is used up."""
    for rows in row_parts(len(left)):  # none is written before it was read
        matrix[rows, : len(left)] = matrix[left[rows]][:, left]
    return matrix[: len(left), : len(left)]
