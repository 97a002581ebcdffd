"""The map of one activation axis before and after a fold, over all of its groups.

Heads of several positions are taken apart into them: what a head's position says of another head's is no matter of
the same position, and a consumer is refitted by what all positions that are left say.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag

from onnxfold.channels.declarations import Axis, Positions
from onnxfold.cluster.partition import ChannelPartition, Samples
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.tensors import Matrix


@dataclass(frozen=True, eq=False)
class AxisMap:
    """The units of an axis: those of every folded group, and single positions that no fold touches."""

    positions: Positions  # places of each unit before the fold
    folded_positions: Positions
    representatives: Positions  # the unit whose place each folded unit has
    #: Those of the groups, one after the other; behind them come the positions that stay.
    partitions: tuple[ChannelPartition, ...]

    @property
    def shrinks(self) -> bool:
        """Whether the axis loses units."""
        return len(self.positions) != len(self.folded_positions)

    @property
    def rotates(self) -> bool:
        """Whether some group keeps axes only, of which no deviation of a channel says anything."""
        return any(p.rotates for p in self.partitions)

    @cached_property
    def encode(self) -> Matrix:
        """P, block diagonal over groups, identity for untouched positions; shape (k_units, n_units)."""
        matrix: Matrix = block_diag(*(p.encode for p in self.partitions), np.eye(self._untouched_count))
        return matrix

    @cached_property
    def decode(self) -> Matrix:
        """Q, likewise; shape (n_units, k_units)."""
        matrix: Matrix = block_diag(*(p.decode for p in self.partitions), np.eye(self._untouched_count))
        return matrix

    @property
    def _untouched_count(self) -> int:
        return len(self.positions) - sum(p.size for p in self.partitions)

    def encode_samples(self, values: Samples) -> Samples:
        """Return P applied to values of shape (..., width), by position: shape (..., folded width)."""
        result = np.empty((*values.shape[:-1], self.folded_positions.size), values.dtype)
        if all(p.only_selects for p in self.partitions):  # as with a matrix, zeros are positive
            for old, new in zip(self.positions[self.representatives].T, self.folded_positions.T, strict=True):
                result[..., new] = values[..., old]
            result += result.dtype.type(0)
            return result
        encode = self.encode.astype(values.dtype, copy=False)
        for old, new in zip(self.positions.T, self.folded_positions.T, strict=True):
            result[..., new] = values[..., old] @ encode.T
        return result


def axis_map(plan: FoldPlan, axis: Axis, width: int) -> AxisMap | None:
    """Return the map of an axis; None where its groups occur differently often, so that units do not line up."""
    parts = [_by_position(g.tensors[axis], p) if g.apart else (g.tensors[axis], p) for g, p in plan.groups_on(axis)]
    if not parts:
        places = np.arange(width)[:, None]
        return AxisMap(places, places, np.arange(width), ())
    repeats = {table.shape[1] for table, _ in parts}
    covered = np.concatenate([table.reshape(-1) for table, _ in parts])
    rest = np.setdiff1d(np.arange(width), covered)
    if len(repeats) > 1 or (len(rest) and repeats != {1}):
        return None
    tables = [table for table, _ in parts] + ([rest[:, None]] if len(rest) else [])
    before = np.cumsum([0, *(p.size for _, p in parts)])
    kept = [start + p.representatives for start, (_, p) in zip(before, parts, strict=False)]
    positions, representatives = np.concatenate(tables), np.concatenate([*kept, before[-1] + np.arange(len(rest))])
    place = np.full(width, -1)
    order = np.sort(positions[representatives].reshape(-1))
    place[order] = np.arange(len(order))
    return AxisMap(positions, place[positions[representatives]], representatives, tuple(p for _, p in parts))


def _by_position(positions: Positions, partition: ChannelPartition) -> tuple[Positions, ChannelPartition]:
    """Return every position of units as a unit of its own, and the partition of these."""
    repeats = positions.shape[1]
    return (positions, partition) if repeats == 1 else (positions.reshape(-1, 1), partition.by_position(repeats))
