"""Geometry of a widening: new units, where they lie on an axis, and the numbers that stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.passes.join import stacked_axes

Array = NDArray[Any]
Index = NDArray[np.int64]

_SIGNS = np.array([-1.0, 1.0])


@dataclass(frozen=True)
class WideGroup:
    """The new units of a group: which old unit each one copies, and between which old ones it stands.

    Parameters
    ----------
    source : ndarray of shape (n',)
        Old unit that each new unit is a copy of.
    slot : ndarray of shape (n',)
        Ascending; new unit v takes a place that old unit ``slot[v]`` had.
    """

    source: Index
    slot: Index


@dataclass(frozen=True)
class WideAxis:
    """A widened axis, by new position.

    Parameters
    ----------
    place : ndarray of shape (n',)
        Ascending; the old position whose place it takes.
    source : ndarray of shape (n',)
        The old position that it copies.
    group, unit : ndarray of shape (n',)
        Which group and which new unit it belongs to; -1: none.
    """

    place: Index
    source: Index
    group: Index
    unit: Index


@dataclass(frozen=True)
class Parts:
    """How the column of a consumer is split among the copies of a channel.

    Parameters
    ----------
    per_row : bool
        Split every entry on its own, not the column as a whole.
    signed : bool
        About half of the parts but the last are negative, and all are larger for it.
    """

    per_row: bool = False
    signed: bool = True

    def draw(self, count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return `count` unequal numbers per entry of `shape` that sum to one."""
        shape = shape if self.per_row else (1,) * len(shape)
        parts = rng.uniform(0.2, 1.2, (count, *shape))
        if self.signed:
            parts *= _SIGNS[rng.integers(0, 2, parts.size)].reshape(parts.shape)
        parts[-1] = 1.0 - np.add.reduce(parts[:-1])
        return parts


def draw_units(group: FoldGroup, factor: int | None, rng: np.random.Generator) -> WideGroup:
    blocks = np.zeros(group.size, np.int64) if group.blocks is None else group.blocks
    copies = np.full(group.size, factor or 1)
    if factor is None:
        drawn = rng.integers(1, 4, group.size // group.block_count)
        for block in range(group.block_count):
            copies[blocks == block] = drawn[0] if group.rules.averaged else rng.permutation(drawn)
    source = np.empty(copies.sum(), np.int64)
    slot = np.repeat(np.arange(group.size), copies)  # as many new units in a block as copies of its old ones
    for block in range(group.block_count):
        units = np.flatnonzero(blocks == block)
        source[np.isin(slot, units)] = rng.permutation(np.repeat(units, copies[units]))
    return WideGroup(source, slot)


def lay_out(
    groups: Sequence[FoldGroup], wide: Sequence[WideGroup], tensor: str, axis: int, blocks: int, shape: tuple[int, ...]
) -> WideAxis:
    """Lay out a widened axis: where a run of one unit's positions stood, stand those of its slot's new units."""
    laid = stacked_axes.lay_out(groups, [units.slot for units in wide], tensor, axis, blocks, shape)
    source = laid.place.copy()
    for g in set(laid.group[laid.group >= 0].tolist()):
        positions = _positions(groups[g], tensor, axis)
        here = np.flatnonzero(laid.group == g)
        source[here] = positions[wide[g].source[laid.unit[here]], laid.rank[here]]
    return WideAxis(laid.place, source, laid.group, laid.unit)


def _positions(group: FoldGroup, tensor: str, axis: int) -> Index:
    """Return where units lie, however the axis is packed."""
    axes = (*group.tensors, *(member.axis for member in group.members))
    found = group.places.get(next(a for a in axes if (a.tensor, a.axis) == (tensor, axis)))
    assert found is not None
    return found


def stretch(
    values: Array, axis: int, blocks: int, layout: WideAxis, role: Role, parts: Parts, rng: np.random.Generator
) -> Array:
    """Copy the entries along an axis to their new places; a consumer's are split among the copies."""
    split = values.reshape(blocks, values.shape[0] // blocks, *values.shape[1:])
    front = np.moveaxis(split, axis + 1, 1)  # (blocks, entries, rest of block)
    packed = front.reshape(blocks * front.shape[1], *front.shape[2:])
    new = packed[layout.source]
    if role is Role.CONSUMER:
        # Copies of one old column get parts of it.
        for copies in np.split(layout.source.argsort(kind="stable"), np.bincount(layout.source).cumsum()[:-1]):
            if not len(copies):
                continue
            new[copies] *= parts.draw(len(copies), packed.shape[1:], rng)
    back = np.moveaxis(new.reshape(blocks, len(new) // blocks, *front.shape[2:]), 1, axis + 1)
    return back.reshape(blocks * back.shape[1], *back.shape[2:])
