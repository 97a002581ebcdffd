"""The map of one activation axis before and after a fold, over all of its groups.

Heads of several positions are taken apart into them: what a head's position says of another head's is no matter of
the same position, and a consumer is refitted by what all positions that are left say.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.channels.declarations import Axis, Positions
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.graph.tensors import Matrix

Samples = npt.NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class AxisMap:
    """The units of an axis: those of every folded group, and single positions that no fold touches.

    Parameters
    ----------
    positions : ndarray of shape (n_units, r)
        Places of each unit before the fold.
    folded_positions : ndarray of shape (k_units, r)
        Places after the fold.
    representatives : ndarray of shape (k_units,)
        The unit whose place each folded unit has.
    encode : ndarray of shape (k_units, n_units)
        P, block diagonal over groups, identity for untouched positions.
    decode : ndarray of shape (n_units, k_units)
        Q, likewise.
    """

    positions: Positions
    folded_positions: Positions
    representatives: Positions
    encode: Matrix
    decode: Matrix

    @property
    def shrinks(self) -> bool:
        """Whether the axis loses units."""
        return len(self.positions) != len(self.folded_positions)

    def encoded(self, values: Samples) -> Samples:
        """Return P applied to values of shape (..., width), by position: shape (..., folded width)."""
        encode = self.encode.astype(values.dtype, copy=False)
        result = np.empty((*values.shape[:-1], self.folded_positions.size), values.dtype)
        for old, new in zip(self.positions.T, self.folded_positions.T, strict=True):
            result[..., new] = values[..., old] @ encode.T
        return result


def axis_map(plan: FoldPlan, axis: Axis, width: int) -> AxisMap | None:
    """Return the map of an axis; None where its groups occur differently often, so that units do not line up."""
    found = [_by_position(g.tensors[axis], p) if g.apart else (g.tensors[axis], p) for g, p in plan.on_axis(axis)]
    if not found:
        places = np.arange(width)[:, None]
        return AxisMap(places, places, np.arange(width), np.eye(width), np.eye(width))
    repeats = {where.shape[1] for where, _ in found}
    covered = np.concatenate([where.reshape(-1) for where, _ in found])
    rest = np.setdiff1d(np.arange(width), covered)
    if len(repeats) > 1 or (len(rest) and repeats != {1}):
        return None
    tables = [where for where, _ in found] + ([rest[:, None]] if len(rest) else [])
    sizes = [(p.size, p.clusters) for _, p in found] + ([(len(rest), len(rest))] if len(rest) else [])
    n, k = (sum(column) for column in zip(*sizes, strict=True))
    encode, decode, representatives = np.zeros((k, n)), np.zeros((n, k)), []
    row = column = 0
    for i, (units, clusters) in enumerate(sizes):
        partition = found[i][1] if i < len(found) else None
        block = slice(row, row + units), slice(column, column + clusters)
        decode[block] = partition.decode if partition else np.eye(units)
        encode[block[::-1]] = partition.encode if partition else np.eye(units)
        representatives.append(row + (partition.representatives if partition else np.arange(units)))
        row, column = row + units, column + clusters
    positions, kept = np.concatenate(tables), np.concatenate(representatives)
    place = np.full(width, -1)
    order = np.sort(positions[kept].reshape(-1))
    place[order] = np.arange(len(order))
    return AxisMap(positions, place[positions[kept]], kept, encode, decode)


def _by_position(where: Positions, partition: ChannelPartition) -> tuple[Positions, ChannelPartition]:
    """Return every position of units as a unit of its own, and the partition of these."""
    repeats = where.shape[1]
    if repeats == 1:
        return where, partition
    inside = np.arange(repeats)
    labels = partition.labels[:, None] * repeats + inside
    labels[partition.labels < 0] = -1
    representatives = (partition.representatives[:, None] * repeats + inside).reshape(-1)
    encode: Matrix = np.kron(partition.encode, np.eye(repeats)).astype(np.float64)
    decode: Matrix = np.kron(partition.decode, np.eye(repeats)).astype(np.float64)
    return where.reshape(-1, 1), ChannelPartition(labels.reshape(-1), encode, decode, representatives)
