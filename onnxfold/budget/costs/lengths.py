r"""Costs as functions of the groups' widths.

Along an axis, a tensor holds fixed positions and r_g positions per channel of some groups g, in `blocks` equal parts.
So the axis' length is affine in the widths k, and a tensor's size is a product of lengths:

    length(k) = (fixed + sum_g r_g k_g) / blocks

A cost of running may count a length as more than it is, where a runtime computes whole tiles of it (:class:`Tiling`).
What a model costs is a sum of such products, or the largest of several such sums. Nothing has to be folded to know it,
and many choices of widths are evaluated at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from onnxfold.channels.group import FoldGroup
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.view import GraphView

#: Normalised graphs with the groups whose widths vary.
Graphs = Sequence[tuple[GraphView, Sequence[FoldGroup]]]
Integers = npt.NDArray[np.int64]

#: Sums of a thousand such products still fit in 64 bits; GPT-3 multiplies 10^15 times for a long sample.
_LARGEST_PRODUCT = 1 << 53


@dataclass(frozen=True, order=True)
class Tiling:
    """The count of a length, where a runtime computes `size` entries at a time."""

    size: int = 1  # entries that are computed together; part of a tile takes as long as a whole one
    least: int = 0  # shorter lengths are not tiled, and each entry counts `tiled`
    aligned: int = 1  # lengths that are no multiple of this are not tiled, and each entry counts `untiled`
    tiled: int = 1  # what an entry counts within tiles and without them
    untiled: int = 1

    def count(self, length: int) -> int:
        """Return the count of a length; see :func:`tiled_counts`."""
        if length < self.least:
            return length * self.tiled
        return length * self.untiled if length % self.aligned else -(-length // self.size) * self.size * self.tiled


#: Every entry counts once.
PLAIN = Tiling()


@dataclass(frozen=True, order=True)
class Length:
    """``(fixed + sum of positions * width of group) / blocks``; `parts` are pairs (group, positions per channel).

    `whole` is the length before the fold, the largest length; 0 if it is unknown.
    """

    fixed: int
    parts: tuple[tuple[int, int], ...] = ()
    blocks: int = 1
    whole: int = field(default=0, compare=False)
    tiling: Tiling = PLAIN

    def renumbered(self, numbers: Sequence[int]) -> "Length":
        """Return the length with other numbers for its groups; those that get the same number become one part."""
        parts: dict[int, int] = {}
        for group, positions in self.parts:
            parts[numbers[group]] = parts.get(numbers[group], 0) + positions
        return replace(self, parts=tuple(sorted(parts.items())))

    @property
    def constant(self) -> int:
        """Count of the length without channels of any group."""
        return self.tiling.count(self.fixed // self.blocks)

    @property
    def most(self) -> int:
        """The largest that the length may count, as far as it is known."""
        whole = self.whole or self.fixed // self.blocks
        return (whole + self.tiling.size - 1) * max(self.tiling.tiled, self.tiling.untiled)


def tiling_table(tilings: Sequence[Tiling]) -> Integers:
    """Return the fields of tilings in rows, shape (5, n_lengths)."""
    return np.array([astuple(tiling) for tiling in tilings], np.int64).reshape(-1, 5).T


def tiled_counts(lengths: Integers, table: Integers) -> Integers:
    """Return the counts of lengths, shape (n_lengths, ...), under tilings of shape (5, n_lengths, ...)."""
    size, least, aligned, within, without = table
    whole = -(-lengths // size) * size * within
    counts: Integers = np.where(
        lengths < least, lengths * within, np.where(lengths % aligned, lengths * without, whole)
    )
    return counts


@dataclass(frozen=True)
class Product:
    """A factor times lengths that depend on widths."""

    factor: int
    lengths: tuple[Length, ...] = ()

    @classmethod
    def of(cls, lengths: Iterable[Length], factor: int = 1) -> "Product":
        """Multiply lengths; those that do not depend on widths go into the factor."""
        factors = list(lengths)
        largest = prod((length.most for length in factors), start=factor)
        if abs(largest) > _LARGEST_PRODUCT:
            raise UnsupportedModelError(
                f"a layer or tensor of the model counts {float(min(largest, 10**300)):.1e} multiply-accumulates or "
                "bytes per sample: check the sizes of its inputs, pads and repeats"
            )
        constant = prod(length.constant for length in factors if not length.parts)
        return cls(factor * constant, tuple(sorted(length for length in factors if length.parts)))


class FoldedAxes:
    """Lengths of the axes of one graph."""

    def __init__(self, groups: Sequence[FoldGroup], first: int = 0) -> None:
        self._parts: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._covered: dict[tuple[str, int], int] = {}
        self._blocks: dict[tuple[str, int], int] = {}
        self._spare: dict[str, tuple[int, int]] = {}
        for number, group in enumerate(groups, start=first):
            self._spare.update(dict.fromkeys(group.seam.spare, (number, group.size)))
            places = [(m.axis, m.positions) for m in group.members] + list(group.tensors.items())
            for axis, positions in places:
                key = (axis.tensor, axis.axis)
                self._parts.setdefault(key, []).append((number, positions.shape[1]))
                self._covered[key] = self._covered.get(key, 0) + positions.size
                self._blocks[key] = axis.blocks

    def lengths(self, tensor: str, shape: Sequence[int]) -> list[Length]:
        """Return the length of every axis of a tensor that has the given shape before the fold."""
        lengths = []
        for axis, size in enumerate(shape):
            key = (tensor, axis)
            blocks = self._blocks.get(key, 1)
            fixed = size * blocks - self._covered.get(key, 0)
            lengths.append(Length(fixed, tuple(self._parts.get(key, ())), blocks, size))
        return self.drop_spare(tensor, lengths)

    def drop_spare(self, weight: str, lengths: Sequence[Length]) -> list[Length]:
        """Return lengths whose product is 0 where a weight is spare: while the group that it belongs to is whole."""
        if weight not in self._spare:
            return list(lengths)
        number, size = self._spare[weight]
        missing = Tiling(aligned=size, tiled=0)
        return [replace(length, tiling=missing) if length.parts == ((number, 1),) else length for length in lengths]


class ProductTable:
    """Products of lengths, evaluated for many widths at once."""

    def __init__(self, products: Sequence[Product], group_count: int) -> None:
        known = list(dict.fromkeys(length for p in products for length in p.lengths))
        entries = [(i, g, r) for i, length in enumerate(known) for g, r in length.parts]
        rows, columns, values = np.array(entries, np.int64).reshape(-1, 3).T
        shape = (len(known), group_count)
        #: Numbers of a length, of a group in it, and its positions per channel.
        self.parts = rows, columns, values
        self._group_count = group_count
        self._matrix = csr_array((values, (rows, columns)), shape=shape, dtype=np.int64)
        # Products with fewer lengths than others are filled up with a length of one, the last row.
        filled = [*known, Length(1)]
        self.length_count = len(filled)
        self._fixed = np.array([length.fixed for length in filled], np.int64)
        self._blocks = np.array([length.blocks for length in filled], np.int64)
        self._divides = bool((self._blocks > 1).any())
        tilings = [length.tiling for length in filled]
        self._tilings = tiling_table(tilings) if set(tilings) != {PLAIN} else None
        self.factors = np.array([p.factor for p in products], np.int64)
        number = {length: i for i, length in enumerate(known)}
        most = max((len(p.lengths) for p in products), default=0)
        index = [[number[n] for n in p.lengths] + [len(known)] * (most - len(p.lengths)) for p in products]
        self.index = np.array(index, np.int64).reshape(len(products), most)

    @cached_property
    def parts_of_groups(self) -> "GroupParts":
        """The parts of every group in lengths and products."""
        return GroupParts(self, self._group_count)

    def numerators(self, widths: Integers) -> Integers:
        """Return the lengths before their division, shape (n_lengths + 1, ...), for widths of shape (n_groups, ...).

        The last one is what products with fewer lengths than others are filled up with.
        """
        products: Integers = self._matrix @ widths
        fixed = self._fixed.reshape(-1, *[1] * (widths.ndim - 1))
        return np.concatenate([products, np.zeros((1, *products.shape[1:]), np.int64)]) + fixed

    def count_lengths(self, numerators: Integers, which: Integers) -> Integers:
        """Return the counts of some lengths by their numerators; `which` are their numbers, of the same shape."""
        quotients = numerators // self._blocks[which] if self._divides else numerators
        return quotients if self._tilings is None else tiled_counts(quotients, self._tilings[:, which])

    def __call__(self, widths: Integers) -> Integers:
        """Return the products, shape (n_products, m), for widths of shape (n_groups, m)."""
        numerators = self.numerators(widths)
        lengths = self.count_lengths(numerators, np.arange(len(numerators))[:, None])
        values: Integers = self.factors[:, None] * lengths[self.index].prod(axis=1)
        return values


class GroupParts:
    """Which group is in which product, pairs sorted by group, and what a channel of it adds to each length."""

    def __init__(self, table: ProductTable, count: int) -> None:
        lengths, groups, positions = table.parts
        index, products = table.index, max(len(table.index), 1)
        order = np.lexsort((groups, lengths))
        lengths, groups, positions = lengths[order], groups[order], positions[order]
        length_start = np.searchsorted(lengths, np.arange(table.length_count + 1))
        product = np.repeat(np.arange(len(index)), index.shape[1])
        entry, owner = ranges(length_start, index.reshape(-1))
        keys = np.unique(groups[entry] * products + product[owner])
        self.pair_product, pair_group = keys % products, keys // products
        self.group_start = np.searchsorted(pair_group, np.arange(count + 1))
        known = lengths * count + groups
        wanted = index[self.pair_product] * count + pair_group[:, None]
        place = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        self.adds = np.where(known[place] == wanted, positions[place], 0) if len(known) else np.zeros_like(wanted)
        by_product = np.argsort(self.pair_product, kind="stable")
        self.groups_of = pair_group[by_product]
        self.product_start = np.searchsorted(self.pair_product[by_product], np.arange(len(index) + 1))
        by_group = np.argsort(groups, kind="stable")
        self.lengths_of, self.lengths_add = lengths[by_group], positions[by_group]
        self.lengths_start = np.searchsorted(groups[by_group], np.arange(count + 1))


def ranges(starts: Integers, chosen: Integers) -> tuple[Integers, Integers]:
    """Return all entries of chosen rows, each row being ``starts[i]:starts[i + 1]``, and the number of the row."""
    counts = starts[chosen + 1] - starts[chosen]
    owner = np.repeat(np.arange(len(chosen)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return starts[chosen][owner] + within, owner


class Cost(ABC):
    """A cost as a function of the widths of all groups, in the order of the graphs; it never grows when one shrinks."""

    def __call__(self, widths: Sequence[int]) -> int:
        """Return the cost of one choice of widths."""
        return int(self.many(np.asarray(widths, np.int64)[None])[0])

    @abstractmethod
    def many(self, widths: Integers) -> Integers:
        """Return the costs, shape (m,), of m choices of widths, shape (m, n_groups)."""

    def renumbered(self, numbers: Sequence[int]) -> "Cost":
        """Return the cost as a function of other widths: group i has the width of number `numbers[i]`."""
        return _Renumbered(self, np.asarray(numbers, np.int64))


class _Renumbered(Cost):
    def __init__(self, cost: Cost, numbers: Integers) -> None:
        self._cost, self._numbers = cost, numbers

    def many(self, widths: Integers) -> Integers:
        return self._cost.many(widths[:, self._numbers])


class SumCost(Cost):
    """A sum of products, divided by a number."""

    def __init__(self, products: Iterable[Product], group_count: int, divisor: int = 1) -> None:
        factors: dict[tuple[Length, ...], int] = {}
        for product in products:
            factors[product.lengths] = factors.get(product.lengths, 0) + product.factor
        self._factors = dict(factors)
        self.fixed = factors.pop((), 0)
        self.divisor = divisor
        self.table = ProductTable([Product(factor, lengths) for lengths, factor in factors.items()], group_count)

    def many(self, widths: Integers) -> Integers:
        """Return the sums, shape (m,), for m choices of widths, shape (m, n_groups)."""
        total: Integers = self.fixed + self.table(widths.T).sum(axis=0)
        return total // self.divisor

    def renumbered(self, numbers: Sequence[int]) -> "SumCost":
        """Return the same sum, so that moves of single widths stay cheap."""
        products = [
            Product(factor, tuple(length.renumbered(numbers) for length in lengths))
            for lengths, factor in self._factors.items()
        ]
        return SumCost(products, max(numbers, default=-1) + 1, self.divisor)


def number_groups(graphs: Graphs) -> list[tuple[GraphView, FoldedAxes]]:
    """Return every graph with the lengths of its axes, groups numbered over all graphs."""
    pairs, first = [], 0
    for view, groups in graphs:
        pairs.append((view, FoldedAxes(groups, first)))
        first += len(groups)
    return pairs


def group_count(graphs: Graphs) -> int:
    """Return the number of groups of all graphs."""
    return sum(len(groups) for _, groups in graphs)
