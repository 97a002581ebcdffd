"""Costs of changing one group's width, updated after every change.

Searches for widths compare the next move of every group, make one, and compare again. A move changes few products of a
sum (those of the layers that the group touches), so only the moves of their groups are computed anew.
"""

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
from scipy.sparse import csr_array

from onnxfold.budget.costs.lengths import Cost, Integers, SumCost
from onnxfold.graph.tensors import Matrix
from onnxfold.statistics.samples import parts

#: Most numbers of a table of widths that are tried at once.
_TABLE = 1 << 22


def single_moves(cost: Cost, widths: Sequence[int]) -> "SingleMoves":
    """Return the moves from some widths under a cost."""
    start = np.array(widths, np.int64)
    return _SparseMoves(cost, start) if isinstance(cost, SumCost) else SingleMoves(cost, start)


class SingleMoves:
    """Costs of moves from some widths under any cost: every one is a choice of widths that is evaluated as a whole."""

    def __init__(self, cost: Cost, widths: Integers) -> None:
        self._cost = cost
        self._start(widths)

    def _start(self, widths: Integers) -> None:
        #: The cost of the present widths.
        self._widths, self.total = widths, int(self._cost.many(widths[None])[0])

    def start_at(self, widths: Integers) -> "SingleMoves":
        """Return the moves from other widths, which need no look at the sum again."""
        moves = copy(self)
        moves._start(widths.copy())
        return moves

    def changes(self, groups: Integers, to: Integers) -> Integers:
        """Return the additions to the cost of moving each of some groups alone, before :meth:`cost` is applied."""
        changes = [np.zeros(0, np.int64)]
        for part in parts(len(groups), max(_TABLE // max(len(self._widths), 1), 1)):
            trials = np.repeat(self._widths[None], len(groups[part]), axis=0)
            trials[np.arange(len(trials)), groups[part]] = to[part]
            changes.append(self._cost.many(trials) - self.total)
        return np.concatenate(changes)

    def cost(self, changes: Integers) -> Integers:
        """Return the costs after changes of the present widths."""
        return self.total + changes

    def take(self, group: int, to: int) -> Integers:
        """Move a group; return the groups whose moves change the cost differently from now on."""
        self._widths[group] = to
        self._start(self._widths)
        return np.arange(len(self._widths))


class _SparseMoves(SingleMoves):
    """Moves under a sum of products: pairs of a group and a product that it is in say what a move changes."""

    def __init__(self, cost: SumCost, widths: Integers) -> None:
        self._table = table = cost.table
        self._fixed, self._divisor = cost.fixed, cost.divisor
        products, lengths = table.index.shape
        rows = np.repeat(np.arange(products), lengths)
        ones = np.ones(products * lengths, np.int64)
        holds = csr_array((ones, (rows, table.index.ravel())), shape=(products, table.positions.shape[0]))
        pairs = holds @ table.positions
        by_group, by_product, positions = pairs.tocsc(), pairs.tocsr(), table.positions.tocsc()
        self._group_start, self._product_of = by_group.indptr, by_group.indices
        self._product_start, self._group_of = by_product.indptr, by_product.indices
        self._length_start, self._length_of, self._adds_to_length = positions.indptr, positions.indices, positions.data
        group = np.repeat(np.arange(len(widths)), np.diff(self._group_start))
        self._adds = table.positions[table.index[self._product_of], group[:, None]].toarray()
        self._start(widths)

    def _start(self, widths: Integers) -> None:
        self._widths, self._numerators = widths, self._table.numerators(widths)
        self._values = self._products(np.arange(len(self._table.factors)))
        self._sum = self._fixed + int(self._values.sum())
        self.total = self._sum // self._divisor

    def changes(self, groups: Integers, to: Integers) -> Integers:
        pair, owner = ranges(self._group_start, groups)
        product = self._product_of[pair]
        step = (to - self._widths[groups])[owner]
        index = self._table.index[product]
        lengths = self._table.count_lengths(self._numerators[index] + self._adds[pair] * step[:, None], index)
        changes = np.zeros(len(groups), np.int64)
        np.add.at(changes, owner, self._table.factors[product] * lengths.prod(axis=1) - self._values[product])
        return changes

    def cost(self, changes: Integers) -> Integers:
        return (self._sum + changes) // self._divisor

    def take(self, group: int, to: int) -> Integers:
        mine = slice(*self._length_start[group : group + 2])
        self._numerators[self._length_of[mine]] += self._adds_to_length[mine] * (to - self._widths[group])
        self._widths[group] = to
        touched = self._product_of[slice(*self._group_start[group : group + 2])]
        fresh = self._products(touched)
        self._sum += int((fresh - self._values[touched]).sum())
        self._values[touched], self.total = fresh, self._sum // self._divisor
        return np.unique(self._group_of[ranges(self._product_start, touched)[0]])

    def _products(self, chosen: Integers) -> Integers:
        index = self._table.index[chosen]
        lengths = self._table.count_lengths(self._numerators[index], index)
        return self._table.factors[chosen] * lengths.prod(axis=1)  # type: ignore[no-any-return]


def ranges(starts: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """Return all entries of chosen rows, each row being ``starts[i]:starts[i + 1]``, and the number of the row."""
    counts = starts[chosen + 1] - starts[chosen]
    owner = np.repeat(np.arange(len(chosen)), counts)
    return np.repeat(starts[chosen] + counts - np.cumsum(counts), counts) + np.arange(len(owner)), owner


class NextMoves:
    """One move per group, kept up to date while moves are taken."""

    def __init__(
        self, costs: Sequence[SingleMoves], curves: Sequence[Matrix], widths: Integers, free: Sequence[int],
        target: Callable[[int, int], int],
    ) -> None:  # fmt: skip
        self._curves, self._target = curves, target
        self._costs = [cost.start_at(widths) for cost in costs]
        self.widths = widths.copy()
        self.to = widths.copy()
        self.added = np.zeros(len(widths))
        for i in free:
            self._aim(i)
        self._changes = [cost.changes(np.arange(len(widths)), self.to) for cost in self._costs]

    def _aim(self, i: int) -> None:
        self.to[i] = self._target(i, width := int(self.widths[i]))
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
