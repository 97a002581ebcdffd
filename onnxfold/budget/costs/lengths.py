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
from copy import copy
from dataclasses import astuple, dataclass, field, replace
from itertools import accumulate
from math import prod

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from onnxfold.channels.group import FoldGroup, lists_by_key
from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.view import GraphView

#: Normalised graphs with the groups whose widths vary.
Graphs = Sequence[tuple[GraphView, Sequence[FoldGroup]]]
Integers = npt.NDArray[np.int64]
Number = int | Integers

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
        """Return the count of a length."""
        return length if self == PLAIN else int(tiled_counts(np.array(length), *astuple(self)))


def tiled_counts(
    lengths: Integers, size: Number, least: Number, aligned: Number, tiled: Number, untiled: Number
) -> Integers:
    """Return the counts of lengths under tilings, whose fields have the shape of the lengths."""
    whole = -(-lengths // size) * size * tiled
    return np.where(lengths < least, lengths * tiled, np.where(lengths % aligned, lengths * untiled, whole))


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

    @property
    def constant(self) -> int:
        """Count of the length without channels of any group."""
        return self.tiling.count(self.fixed // self.blocks)

    @property
    def most(self) -> int:
        """The largest that the length may count, as far as it is known."""
        whole = self.whole or self.fixed // self.blocks
        return (whole + self.tiling.size - 1) * max(self.tiling.tiled, self.tiling.untiled)


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

    def __init__(self, groups: Sequence[FoldGroup], first: int, group_count: int) -> None:
        self.group_count = group_count  # of all graphs; the first of this one has the number `first`
        numbered = list(enumerate(groups, start=first))
        self._spare = {weight: (number, group.size) for number, group in numbered for weight in group.seam.spare}
        self._places = lists_by_key(
            ((axis.tensor, axis.axis), (number, axis.blocks, positions))
            for number, group in numbered
            for axis, positions in group.places.items()
        )

    @classmethod
    def of(cls, graphs: Graphs) -> list[tuple[GraphView, "FoldedAxes"]]:
        """Return every graph with the lengths of its axes, groups numbered over all graphs."""
        *firsts, count = accumulate((len(groups) for _, groups in graphs), initial=0)
        return [(view, cls(groups, first, count)) for (view, groups), first in zip(graphs, firsts, strict=True)]

    def lengths(self, tensor: str, shape: Sequence[int]) -> list[Length]:
        """Return the length of every axis of a tensor that has the given shape before the fold."""
        lengths = []
        for axis, size in enumerate(shape):
            places = self._places.get((tensor, axis), [])
            blocks = places[-1][1] if places else 1
            fixed = size * blocks - sum(positions.size for _, _, positions in places)
            parts = tuple((number, positions.shape[1]) for number, _, positions in places)
            lengths.append(Length(fixed, parts, blocks, size))
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
        # Products with fewer lengths than others are filled up with a length of one, the last row.
        filled = [*known, Length(1)]
        #: Positions of every length per channel of every group.
        self.positions = csr_array((values, (rows, columns)), shape=(len(filled), group_count), dtype=np.int64)
        self._fixed = np.array([length.fixed for length in filled], np.int64)
        self._blocks = np.array([length.blocks for length in filled], np.int64)
        self._divides = bool((self._blocks > 1).any())
        tilings = [length.tiling for length in filled]
        self._tilings = np.array([astuple(t) for t in tilings], np.int64).T if set(tilings) != {PLAIN} else None
        self.factors = np.array([p.factor for p in products], np.int64)
        number = {length: i for i, length in enumerate(known)}
        most = max((len(p.lengths) for p in products), default=0)
        index = [[number[n] for n in p.lengths] + [len(known)] * (most - len(p.lengths)) for p in products]
        self.index = np.array(index, np.int64).reshape(len(products), most)

    def renumbered(self, numbers: Sequence[int]) -> "ProductTable":
        """Return the table as a function of other widths: group i has the width of number `numbers[i]`."""
        own = csr_array((np.ones(len(numbers), np.int64), (np.arange(len(numbers)), np.asarray(numbers, np.int64))))
        table = copy(self)
        table.positions = csr_array(self.positions @ own)
        return table

    def numerators(self, widths: Integers) -> Integers:
        """Return the lengths before their division, shape (n_lengths + 1, ...), for widths of shape (n_groups, ...)."""
        return self.positions @ widths + self._fixed.reshape(-1, *[1] * (widths.ndim - 1))  # type: ignore[no-any-return]

    def count_lengths(self, numerators: Integers, which: Integers) -> Integers:
        """Return the counts of some lengths by their numerators; `which` are their numbers, of the same shape."""
        quotients = numerators // self._blocks[which] if self._divides else numerators
        return quotients if self._tilings is None else tiled_counts(quotients, *self._tilings[:, which])

    def __call__(self, widths: Integers) -> Integers:
        """Return the products, shape (n_products, m), for widths of shape (n_groups, m)."""
        numerators = self.numerators(widths)
        lengths = self.count_lengths(numerators, np.arange(len(numerators))[:, None])
        return self.factors[:, None] * lengths[self.index].prod(axis=1)  # type: ignore[no-any-return]


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

    def __init__(self, graphs: Graphs, products: Iterable[Product], divisor: int = 1) -> None:
        factors: dict[tuple[Length, ...], int] = {}
        for product in products:
            factors[product.lengths] = factors.get(product.lengths, 0) + product.factor
        self.fixed = factors.pop((), 0)
        self.divisor = divisor
        varying = [Product(factor, lengths) for lengths, factor in factors.items()]
        self.table = ProductTable(varying, sum(len(groups) for _, groups in graphs))

    def many(self, widths: Integers) -> Integers:
        """Return the sums, shape (m,), for m choices of widths, shape (m, n_groups)."""
        total: Integers = self.fixed + self.table(widths.T).sum(axis=0)
        return total // self.divisor

    def renumbered(self, numbers: Sequence[int]) -> "SumCost":
        """Return the same sum, so that moves of single widths stay cheap."""
        renumbered = copy(self)
        renumbered.table = self.table.renumbered(numbers)
        return renumbered
