"""Axes of the joined graph: where the channels of every network lie on them.

Places of channels on an axis when every channel may become several.

A fold keeps, on every axis, the places of some channels in their old order. This is the reverse: each new unit is given
a *slot*, an old unit, and where a run of positions of that unit stood, runs of all units of its slot stand. Whatever a
fold may take away again can be put in this way, so the result is valid wherever folds are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.group import FoldGroup, lists_by_key
from onnxfold.graph.tensors import Array
from onnxfold.passes.join.structure import LayoutError, Match, SourceNetwork

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WideAxis:
    """An axis with room for the new units, by new position."""

    place: Index  # ascending; the old position whose place it takes
    #: Which group and which new unit it belongs to, and which of the unit's positions on this axis it is; -1: none.
    group: Index
    unit: Index
    rank: Index


def lay_out(
    groups: Sequence[FoldGroup], slots: Sequence[Index], tensor: str, axis: int, blocks: int, shape: tuple[int, ...]
) -> WideAxis:
    """Lay out an axis: where a run of one unit's positions stood, stand those of its slot's new units."""
    width = shape[axis] * blocks
    group_at, unit_at, rank_at = np.full((3, width), -1, np.int64)
    for g, group in enumerate(groups):
        for key, positions in group.places.items():
            if (key.tensor, key.axis) == (tensor, axis):
                group_at[positions] = g
                unit_at[positions] = np.arange(group.size)[:, None]
                rank_at[positions] = np.arange(positions.shape[1])
    starts = np.flatnonzero(np.diff(group_at, prepend=-2) | np.diff(unit_at, prepend=-2) | (group_at < 0))
    runs: list[range] = []
    units: list[int] = []
    for start, stop in pairwise([*starts.tolist(), width]):
        g = int(group_at[start])
        here = [-1] if g < 0 else np.flatnonzero(slots[g] == unit_at[start]).tolist()
        runs += [range(start, stop)] * len(here)
        units += here
    place = np.fromiter(chain.from_iterable(runs), np.int64)
    unit = np.repeat(np.array(units, np.int64), np.array([len(run) for run in runs], np.int64))
    return WideAxis(place, group_at[place], unit, rank_at[place])


#: The network of positions that are of no network, or of all.
SHARED = -1


@dataclass(frozen=True, eq=False)
class StackedAxis:
    """An axis of the joined graph."""

    length: int
    places: tuple[Index, ...]  # where every network's positions are

    @property
    def owners(self) -> Index:
        """The network that every position belongs to, shape (length,)."""
        every = np.concatenate(self.places)
        owners = np.full(self.length, SHARED)
        owners[every] = np.repeat(np.arange(len(self.places)), [len(places) for places in self.places])
        owners[np.bincount(every, minlength=self.length) != 1] = SHARED
        return owners


class StackedAxes:
    """All axes, laid out when they are asked for."""

    def __init__(self, networks: Sequence[SourceNetwork], matches: Sequence[Match]) -> None:
        self._networks, self._matches = networks, matches
        self._groups = networks[0].analysis.groups
        self._of = [self._counterparts(i) for i in range(len(networks))]
        self._units = [_Units.of([groups[g] for groups in self._of]) for g in range(len(self._groups))]
        self._known: dict[Axis, StackedAxis] = {}
        axes = dict.fromkeys(axis for group in self._groups for axis in group.places)
        self.grouped = lists_by_key((axis.tensor, axis) for axis in axes)
        self.roles: dict[Axis, Role] = {m.axis: m.role for group in self._groups for m in group.members}

    def name(self, network: int, tensor: str) -> str:
        """Return the name of the tensor that corresponds to one of the first network."""
        return self._matches[network].tensors[tensor] if network else tensor

    def _counterparts(self, network: int) -> list[FoldGroup]:
        """Return the groups of a network in the order of those of the first."""
        other = self._networks[network]
        theirs = {m.axis: group for group in other.analysis.groups for m in group.members}
        partners = []
        for group in self._groups:
            axes = [self._axis_in(network, m.axis) for m in group.members]
            partner = theirs.get(axes[0])
            if partner is None or {m.axis for m in partner.members} != set(axes):
                raise LayoutError(
                    f"channels of '{group.name}' of {self._networks[0].name} are coupled with others than those of "
                    f"'{partner.name if partner else axes[0].tensor}' of {other.name}"
                )
            partners.append(partner)
        if len(partners) != len(other.analysis.groups):
            names = {group.name for group in other.analysis.groups} - {group.name for group in partners}
            raise LayoutError(f"channels of '{min(names)}' of {other.name} can be merged, and not elsewhere")
        return partners

    def _axis_in(self, network: int, axis: Axis) -> Axis:
        return replace(axis, tensor=self.name(network, axis.tensor)) if network else axis

    def axis(self, axis: Axis) -> StackedAxis:
        """Return an axis of a tensor of the first network as it is in the joined graph."""
        if axis not in self._known:
            self._known[axis] = self._stack(axis)
        return self._known[axis]

    def _stack(self, axis: Axis) -> StackedAxis:
        lengths = [self._length(i, axis) for i in range(len(self._networks))]
        if axis not in self.grouped.get(axis.tensor, ()):
            if len(set(lengths)) > 1:
                shown = " and ".join(map(str, dict.fromkeys(lengths)))
                raise LayoutError(
                    f"axis {axis.axis} of '{axis.tensor}' of {self._networks[0].name} holds no channels that can be "
                    f"merged, and has {shown} positions in the networks"
                )
            return StackedAxis(lengths[0], tuple(np.arange(lengths[0]) for _ in lengths))
        shape = self._networks[0].view.shape(axis.tensor)
        assert shape is not None
        sizes = tuple(d or 0 for d in shape)
        slots = [units.slot for units in self._units]
        laid = lay_out(self._groups, slots, axis.tensor, axis.axis, axis.blocks, sizes)
        places: list[Index] = []
        for network, length in enumerate(lengths):
            own = np.full(length, -1, np.int64)
            for g in set(laid.group[laid.group >= 0].tolist()):
                units, here = self._units[g], np.flatnonzero(laid.group == g)
                here = here[units.network[laid.unit[here]] == network]
                positions = self._of[network][g].places[self._axis_in(network, axis)]
                if laid.rank[here].max(initial=0) >= positions.shape[1]:
                    raise LayoutError(f"'{axis.tensor}' has another number of positions per channel in the networks")
                own[positions[units.unit[laid.unit[here]], laid.rank[here]]] = here
            rest, shared = np.flatnonzero(own < 0), np.flatnonzero(laid.group < 0)
            if len(rest) != len(shared):
                raise LayoutError(
                    f"'{axis.tensor}' of {self._networks[0].name} is laid out otherwise in other networks"
                )
            own[rest] = shared
            places.append(own)
        return StackedAxis(len(laid.place), tuple(places))

    def _length(self, network: int, axis: Axis) -> int:
        shape = self._networks[network].view.shape(self.name(network, axis.tensor))
        return ((shape or ())[axis.axis] or 0) * axis.blocks

    def weight(self, tensor: str, only: int | None = None) -> Array:
        """Return a weight of the joined graph: those of the networks side by side, zeros elsewhere."""
        values = [n.view.weight(self.name(i, tensor)) for i, n in enumerate(self._networks)]
        on = {axis.axis: axis for axis in reversed(self.grouped.get(tensor, ()))}
        axes = [on.get(axis, Axis(tensor, axis)) for axis in range(values[0].ndim)]
        stacked = [self.axis(axis) if only is None else self._own_axis(axis, only) for axis in axes]
        lengths = [s.length // a.blocks for s, a in zip(stacked, axes, strict=True)]
        result = np.zeros(lengths, values[0].dtype)
        for network, old in enumerate(values) if only is None else [(only, values[only])]:
            index = list(np.ix_(*(s.places[network] for s in stacked)))
            for i, blocks in ((axis.axis, axis.blocks) for axis in axes if axis.blocks > 1):
                # Columns of every block of rows are positions of their own.
                block = np.repeat(np.arange(blocks), len(old) // blocks)
                columns = index[i].reshape(blocks, -1)[block] - block[:, None] * lengths[i]
                index[i] = columns.reshape([size if at in (0, i) else 1 for at, size in enumerate(old.shape)])
            result[tuple(index)] = old
        return result

    def _own_axis(self, axis: Axis, network: int) -> StackedAxis:
        """Return an axis with the channels of all networks, or of one network where channels do not lie on it."""
        if axis in self.grouped.get(axis.tensor, ()):
            return self.axis(axis)
        length = self._length(network, axis)
        return StackedAxis(length, (np.arange(length),) * len(self._networks))


@dataclass(frozen=True, eq=False)
class _Units:
    """The units of a group of the joined graph: those of the first network, with those of the others behind them."""

    network: npt.NDArray[np.int64]  # which network's, and which of its group
    unit: Index
    slot: Index  # the unit of the first network in whose place it stands

    @classmethod
    def of(cls, groups: Sequence[FoldGroup]) -> "_Units":
        other = next((group for group in groups if group.block_count != groups[0].block_count), None)
        if other is not None:
            raise LayoutError(f"channels of '{other.name}' are cut into another number of blocks in the networks")
        rows: list[tuple[int, int, int]] = []
        for own, *others in zip(*(group.units_by_block for group in groups), strict=True):
            rows += [(0, unit, unit) for unit in own]
            rows += [(network, unit, own[-1]) for network, units in enumerate(others, 1) for unit in units]
        return cls(*np.array(rows, np.int64).T)
