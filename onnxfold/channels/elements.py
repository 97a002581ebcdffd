"""Positions of axes as numbered elements, united by links into units."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from onnxfold.channels.declarations import MAX_WIDTH, Axis, Declaration, Link, Positions, Repeat
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory

#: Most bytes per position that numbering, uniting and grouping take.
_BYTES_PER_POSITION = 100


class Elements:
    """Numbers every position of every axis and unites linked ones."""

    def __init__(self, view: GraphView, declarations: Sequence[Declaration]) -> None:
        self.spans: dict[Axis, slice] = {}  # of the elements of each axis whose width is known
        total = 0
        for axis in dict.fromkeys(a for d in declarations for a in _axes_of(d)):
            size = (view.shape(axis.tensor) or ())[axis.axis]
            if size and size <= MAX_WIDTH:
                self.spans[axis] = slice(total, total + size * axis.blocks)
                total += size * axis.blocks
        memory.require(total * _BYTES_PER_POSITION, f"an analysis of axes with {total:,} positions")
        links = [d for d in declarations if isinstance(d, Link) and d.a in self.spans and d.b in self.spans]
        none = np.zeros(0, np.int64)
        self.edge_a = np.concatenate([none, *(d.a_positions + self.spans[d.a].start for d in links)])
        self.edge_b = np.concatenate([none, *(d.b_positions + self.spans[d.b].start for d in links)])
        self.edge_link = np.repeat(np.arange(len(links)), [len(d.a_positions) for d in links])
        edges = coo_array((np.ones(len(self.edge_a), np.int8), (self.edge_a, self.edge_b)), shape=(total, total))
        self.unit_count, self.unit = connected_components(edges, directed=False)
        self.axes = list(self.spans)
        self.axis_of = np.repeat(np.arange(len(self.axes)), [span.stop - span.start for span in self.spans.values()])

    def units_on(self, axis: Axis, positions: Positions | slice = slice(None)) -> npt.NDArray[np.int64]:
        """Return the unit at positions of an axis, at each by default; none where its width is unknown."""
        span = self.spans.get(axis)
        return self.unit[:0] if span is None else self.unit[span][positions]  # type: ignore[no-any-return]


def _axes_of(declaration: Declaration) -> list[Axis]:
    if isinstance(declaration, Link):
        return [declaration.a, declaration.b]
    return [declaration.source, declaration.result] if isinstance(declaration, Repeat) else [declaration.axis]


class Occurrences:
    """The elements of foldable units, sorted by unit, axis and position."""

    def __init__(self, elements: Elements, foldable: npt.NDArray[np.bool_]) -> None:
        self.elements = elements
        members = np.flatnonzero(foldable[elements.unit])
        order = np.lexsort((members, elements.unit[members]))
        self.element = members[order]
        self.unit = elements.unit[self.element]
        self.axis = elements.axis_of[self.element]
        starts = np.flatnonzero(np.diff(self.unit, prepend=-1)).tolist()
        self.index = {int(self.unit[s]): (s, e) for s, e in pairwise([*starts, len(self.unit)])}
        # Occurrence number of an element among its unit's elements on the same axis.
        new = np.diff(self.unit, prepend=-1).astype(bool) | np.diff(self.axis, prepend=-1).astype(bool)
        first = np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
        self.rank = np.full(len(elements.unit), -1, np.int64)
        self.rank[self.element] = np.arange(len(new)) - first

    def signatures(self) -> Iterable[tuple[int, bytes]]:
        """Yield (unit, signature); units with equal signatures may be merged with each other."""
        e = self.elements
        rank_a, rank_b = self.rank[e.edge_a], self.rank[e.edge_b]
        # Order matters only for units that occur more than once on some axis.
        repeated = np.zeros(e.unit_count, bool)
        repeated[e.unit[np.flatnonzero(self.rank > 0)]] = True
        chosen = np.flatnonzero(repeated[e.unit[e.edge_a]])
        rows = np.stack([e.unit[e.edge_a[chosen]], e.edge_link[chosen], rank_a[chosen], rank_b[chosen]], axis=1)
        rows = rows[np.lexsort(rows.T[::-1])]
        starts = np.flatnonzero(np.diff(rows[:, 0], prepend=-1)).tolist()
        edges = {int(rows[s, 0]): rows[s:t, 1:].tobytes() for s, t in pairwise([*starts, len(rows)])}
        for unit, (start, end) in self.index.items():
            yield unit, self.axis[start:end].tobytes() + b"|" + edges.get(unit, b"")

    def positions(self, units: list[int]) -> dict[Axis, Positions]:
        """Return (n_units, r) positions per axis for units of one signature."""
        spans = [self.index[u] for u in units]
        table = np.stack([self.element[s:e] for s, e in spans])
        axes = self.axis[spans[0][0] : spans[0][1]]  # ascending
        starts = np.flatnonzero(np.diff(axes, prepend=-1)).tolist()
        by_axis = {}
        for start, end in pairwise([*starts, len(axes)]):
            axis = self.elements.axes[axes[start]]
            by_axis[axis] = table[:, start:end] - self.elements.spans[axis].start
        return by_axis
