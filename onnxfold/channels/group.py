"""Fold groups: the result of the channel analysis; and what weights hold for their channels, by unit."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Axis, Count, Declaration, Norm, Positions, Role, Select, Use
from onnxfold.graph.tensors import Array, working_type
from onnxfold.graph.view import GraphView
from onnxfold.report import Refusal

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def lists_by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of every key in their order, keys in the order in which they first occur."""
    lists: dict[K, list[V]] = {}
    for key, value in pairs:
        lists.setdefault(key, []).append(value)
    return lists


@dataclass(frozen=True, eq=False)
class Member:
    """A weight axis that belongs to a group."""

    axis: Axis  # the weight axis
    #: Where each unit lies on the axis, shape (n_units, r); r > 1 after a Flatten or with a depthwise multiplier.
    positions: Positions
    uses: tuple[Use, ...]  # the nodes that use the weight this way

    @property
    def role(self) -> Role:
        """The role that all uses share."""
        return self.uses[0].role


class Allowed(Enum):
    """The ways in which channels become fewer: dropped, averaged, or combined by a rotation."""

    SELECT = "select"  # heads of attention: dropped, or merged with exact duplicates
    MEAN = "mean"
    ROTATE = "rotate"


@dataclass(frozen=True, eq=False)
class WidthRules:
    """The conditions on the widths of a group."""

    #: The block of every unit: those in different blocks must not be merged, and blocks stay equally wide.
    blocks: npt.NDArray[np.int64] | None = None
    #: Whether merging exact duplicates is exact only where all channels that are left stand for equally many, since a
    #: normalisation takes mean and variance over several of them.
    averaged: bool = False
    tie: int | None = None  # groups with the same number stay equally wide, whatever they lose


@dataclass(frozen=True)
class Seam:
    """The products that a seam adds, whose channels are those of a group."""

    spare: tuple[str, ...] = ()  # weights that are identity matrices, and not needed while the group is whole
    widest: int = 0  # the largest width below its own that makes the weights fewer; 0 where any does
    #: Whether it begins with a table that some ids find zeros in, as :mod:`passes.seams.tables` writes it.
    of_some_rows: bool = False


NO_RULES, NO_SEAM = WidthRules(), Seam()


@dataclass(frozen=True, eq=False)
class FoldGroup:
    """Channels that may be merged with each other, and every place where they occur."""

    name: str  # name of the first producing node
    size: int  # number of units (channels) n
    members: tuple[Member, ...]  # weight axes, in the order of the graph
    tensors: Mapping[Axis, Positions]  # where they lie on axes of activations, shape (n_units, r)
    nodes: tuple[str, ...] = ()  # names of the nodes whose weights belong to the group
    rules: WidthRules = NO_RULES  # what its widths have to satisfy
    allowed: Allowed = Allowed.MEAN  # what its channels may become
    #: The norms over its channels, whose scales can go into the weight axes that read their results, with these axes;
    #: it is a residual stream then, and channels are rotated only.
    norms: Mapping[Norm, tuple[Axis, ...]] = field(default_factory=dict)
    seam: Seam = NO_SEAM  # what a seam adds, whose channels they are

    @property
    def blocks(self) -> npt.NDArray[np.int64] | None:
        """The block of every unit; None where there is only one."""
        return self.rules.blocks

    @property
    def apart(self) -> bool:
        """Whether the mean of different channels means nothing."""
        return self.allowed is Allowed.SELECT

    @property
    def rotates(self) -> bool:
        """Whether any orthonormal basis of the channels will do."""
        return self.allowed is Allowed.ROTATE

    @property
    def is_there_to_rotate(self) -> bool:
        """Whether any basis of its channels is as good as they are: of tables and streams."""
        return bool(self.seam.spare or self.norms or self.is_part)

    @property
    def is_part(self) -> bool:
        """Whether its channels are coordinates of some rows of a table of words: inputs show few of them."""
        return self.seam.of_some_rows or bool(self.scoring)

    @property
    def is_between_factors(self) -> bool:
        """Whether a product reads its channels through an identity matrix alone: they are any of its inputs."""
        return not self.norms and any(m.axis.tensor in self.seam.spare for m in self.with_role(Role.PRODUCER))

    @property
    def block_count(self) -> int:
        """Number of blocks; widths are multiples of it."""
        return 1 if self.blocks is None else int(self.blocks.max()) + 1

    @property
    def units_by_block(self) -> list[npt.NDArray[np.int64]]:
        """The units of every block, ascending."""
        blocks = np.zeros(self.size, np.int64) if self.blocks is None else self.blocks
        return [np.flatnonzero(blocks == block) for block in range(self.block_count)]

    @cached_property
    def places(self) -> dict[Axis, Positions]:
        """Where they lie on axes of weights and of activations, shape (n_units, r)."""
        return {m.axis: m.positions for m in self.members} | dict(self.tensors)

    def with_role(self, role: Role) -> list[Member]:
        """Return the members of one role."""
        return [m for m in self.members if m.role is role]

    @cached_property
    def scoring(self) -> list[Member]:
        """The bases of a table that bring what is scored into the coordinates of its rows, along their columns."""
        return [m for m in self.with_role(Role.BASIS) if m.axis.axis == 1]

    @cached_property
    def by_node(self) -> Mapping[Role, Mapping[str, Sequence[Member]]]:
        """The members by their roles, then by the first output of the nodes that use them."""
        return {role: lists_by_key((use.node, m) for m in self.with_role(role) for use in m.uses) for role in Role}

    def matches(self, glob: str) -> bool:
        """Whether the group's name or one of its producing nodes matches a glob or equals it literally."""
        return any(name == glob or fnmatchcase(name, glob) for name in (self.name, *self.nodes))

    def __repr__(self) -> str:
        return f"FoldGroup({self.name!r}, size={self.size}, weights={len(self.members)})"


def members_by_tensor(groups: Iterable[FoldGroup]) -> dict[str, list[tuple[int, Member]]]:
    """Return the members of groups, with the numbers of these, by the weight that they lie on."""
    return lists_by_key((m.axis.tensor, (g, m)) for g, group in enumerate(groups) for m in group.members)


@dataclass(frozen=True)
class ChannelAnalysis:
    """The groups of a model, what stands in the way elsewhere, and the numbers that count channels."""

    groups: list[FoldGroup]
    refusals: list[Refusal]
    counts: list[Count] = field(default_factory=list)
    selects: list[Select] = field(default_factory=list)

    @classmethod
    def of(
        cls, groups: list[FoldGroup], refusals: list[Refusal], declarations: Sequence[Declaration]
    ) -> "ChannelAnalysis":
        """Take the numbers out of what was declared."""
        counts = [d for d in declarations if isinstance(d, Count)]
        return cls(groups, refusals, counts, [d for d in declarations if isinstance(d, Select)])


def rows_of(view: GraphView, member: Member) -> Array:
    """Return the entries of a group's units along a weight's axis, shape (n_units, r, rest), in the working type."""
    return taken_rows(view.weight(member.axis.tensor), member)


def put_rows_of(view: GraphView, member: Member, rows: Array) -> None:
    """Write entries of shape (n_units, r, rest); the weight keeps its type."""
    view.set_weight(member.axis.tensor, replaced_rows(view.weight(member.axis.tensor), member, rows))


def taken_rows(values: Array, member: Member) -> Array:
    """Return the units' entries of an array that is shaped like the member's weight."""
    front = move_to_front(np.asarray(values, working_type(values)), member.axis.axis, member.axis.blocks)
    rows = front[member.positions.reshape(-1)]
    return np.ascontiguousarray(rows.reshape(*member.positions.shape, int(np.prod(front.shape[1:], dtype=np.int64))))


def replaced_rows(values: Array, member: Member, rows: Array) -> Array:
    """Return a copy of an array that is shaped like the member's weight, with entries (n_units, r, rest) for units."""
    axis, blocks, positions = member.axis.axis, member.axis.blocks, member.positions
    front = np.array(move_to_front(np.asarray(values, working_type(values)), axis, blocks))
    front[positions.reshape(-1)] = rows.reshape(positions.size, *front.shape[1:])
    return np.ascontiguousarray(move_from_front(front, axis, blocks).astype(values.dtype, copy=False))


def per_unit(view: GraphView, member: Member) -> Array:
    """Return a per-channel vector by unit, shape (n_units, r)."""
    return rows_of(view, member)[:, :, 0]


def set_per_unit(view: GraphView, member: Member, values: Array) -> None:
    """Write a per-channel vector given by unit, shape (n_units, r)."""
    put_rows_of(view, member, np.asarray(values).reshape(*member.positions.shape, 1))


def scale_units(view: GraphView, member: Member, factor: Array) -> None:
    """Multiply the rows of units by factors of shape (n_units, r)."""
    rows = rows_of(view, member)
    factor = factor.astype(rows.dtype) if factor.shape[1] == 1 else factor
    put_rows_of(view, member, rows * factor[:, :, None])


#: Positions of units, the units whose places are kept, and the matrix that maps old entries to new ones; None where the
#: units that are kept stay as they are.
Fold = tuple[Positions, Positions, npt.NDArray[np.float64] | None]


def move_to_front(values: Array, axis: int, blocks: int = 1) -> Array:
    """Move an axis to the front.

    With `blocks` above 1 the result's first axis runs over (block, entry) pairs: (B*d0, d1, ...) becomes
    (B*d1, d0, ...) for axis 1, where each block of axis 0 has entries of its own.
    """
    return _move_axis(values, axis, 0, blocks)


def move_from_front(values: Array, axis: int, blocks: int = 1) -> Array:
    """Undo :func:`move_to_front`, for any width of the first axis that `blocks` divides."""
    return _move_axis(values, 0, axis, blocks)


def _move_axis(values: Array, source: int, target: int, blocks: int) -> Array:
    if blocks == 1:
        return np.moveaxis(values, source, target)
    split = values.reshape(blocks, values.shape[0] // blocks, *values.shape[1:])
    moved = np.moveaxis(split, source + 1, target + 1)
    return moved.reshape(blocks * moved.shape[1], *moved.shape[2:])


def merge_axis(values: Array, axis: int, blocks: int, folds: list[Fold]) -> Array:
    """Replace groups of entries along an axis by linear combinations of them."""
    front = move_to_front(np.asarray(values, working_type(values)), axis, blocks)
    keep = np.ones(len(front), bool)
    for positions, representatives, _ in folds:
        keep[positions.reshape(-1)] = False
        keep[positions[representatives].reshape(-1)] = True
    merged = front[keep]
    place = np.cumsum(keep) - 1
    for positions, representatives, matrix in folds:
        target = place[positions[representatives]].reshape(-1)
        if matrix is None:  # they are in their places; as products with a matrix are, zeros are positive
            merged[target] += merged.dtype.type(0)
        else:
            rows = front[positions.reshape(-1)].reshape(len(positions), -1)
            merged[target] = (matrix.astype(rows.dtype) @ rows).reshape(len(target), *merged.shape[1:])
    return np.ascontiguousarray(move_from_front(merged, axis, blocks).astype(values.dtype, copy=False))
