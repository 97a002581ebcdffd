"""Merge channels: rewrite every weight, and every number that counts channels; before it, lump exact duplicates.

An axis of an activation has a map from before the fold to behind it, over all of its groups. Heads of several positions
are taken apart into them: what a head's position says of another head's is no matter of the same position, and a
consumer is refitted by what all positions that are left say.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from onnx import NodeProto
from scipy.linalg import block_diag

from onnxfold.channels.declarations import Axis, Count, Positions, Role, Select
from onnxfold.channels.group import Fold, FoldGroup, Member, lists_by_key, merge_axis, put_rows_of, rows_of
from onnxfold.channels.layers import epsilon
from onnxfold.cluster.partition import ChannelPartition, Labels, Samples, mean_partition
from onnxfold.cluster.plan import FoldPlan
from onnxfold.errors import PassError
from onnxfold.graph.nodes import attr_ints, attribute, node_key, rewritten, with_input
from onnxfold.graph.tensors import Array, DerivedTensor, LazyTensor, Matrix
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True, eq=False)
class AxisMap:
    """The units of an axis: those of every folded group, and single positions that no fold touches."""

    positions: Positions  # places of each unit before the fold
    folded_positions: Positions
    representatives: Positions  # the unit whose place each folded unit has
    #: Those of the groups, one after the other; behind them come the positions that stay.
    partitions: tuple[ChannelPartition, ...]

    @property
    def rotates(self) -> bool:
        """Whether some group keeps axes only, of which no deviation of a channel says anything."""
        return any(p.rotates for p in self.partitions)

    @cached_property
    def encode(self) -> Matrix:
        """P, block diagonal over groups, identity for untouched positions; shape (k_units, n_units)."""
        return self._over_all([p.encode for p in self.partitions])

    @cached_property
    def decode(self) -> Matrix:
        """Q, likewise; shape (n_units, k_units)."""
        return self._over_all([p.decode for p in self.partitions])

    def _over_all(self, blocks: list[Matrix]) -> Matrix:
        return np.asarray(block_diag(*blocks, np.eye(len(self.positions) - sum(p.size for p in self.partitions))))

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
    parts: list[tuple[Positions, ChannelPartition]] = []
    for group, partition in plan.groups_by_axis.get(axis, ()):
        places = group.tensors[axis]
        if group.apart and (repeats := places.shape[1]) > 1:  # every position is a unit of its own
            places, partition = places.reshape(-1, 1), partition.by_position(repeats)
        parts.append((places, partition))
    covered = [np.zeros(0, np.int64), *(table.reshape(-1) for table, _ in parts)]
    rest = np.setdiff1d(np.arange(width), np.concatenate(covered))
    tables = [table for table, _ in parts] + ([rest[:, None]] if len(rest) or not parts else [])
    if len({table.shape[1] for table in tables}) > 1:
        return None
    before = np.cumsum([0, *(p.size for _, p in parts)])
    kept = [start + p.representatives for start, (_, p) in zip(before, parts, strict=False)]
    positions, representatives = np.concatenate(tables), np.concatenate([*kept, before[-1] + np.arange(len(rest))])
    places = positions[representatives]
    folded = np.searchsorted(np.sort(places, axis=None), places)
    return AxisMap(positions, folded, representatives, tuple(p for _, p in parts))


#: Weights from this size on are streamed.
_STREAMED_BYTES = 1 << 20


@dataclass(frozen=True)
class FoldChannels(Pass):
    r"""Apply a plan: encode producers (W' = P W), decode consumers (W' = W Q), and update counts.

    Everything else that holds one entry per channel is encoded like a producer; the running variance in the form of
    the factor it stands for, 1/sqrt(var' + eps) = P (1/sqrt(var + eps)).
    """

    plan: FoldPlan  # partition of every group that loses channels
    counts: tuple[Count, ...]  # the numbers in nodes that count channels, from the channel analysis
    selects: tuple[Select, ...] = ()  # the constant inputs that hold channel positions
    #: Merge large weights with external data when they are read, and do not keep them: where nothing reads them again
    #: but what writes the model.
    streams: bool = False

    def run(self, view: GraphView) -> PassResult:
        """Rewrite weights, then counts, and forget stale shapes."""
        sizes = {name: self._new_lengths(view, name) for name in (*view.input_names, *view.output_names)}
        for tensor in self.plan.members:
            old = view.weights[tensor]
            if self.streams and isinstance(old, LazyTensor) and old.is_external and old.stored_bytes >= _STREAMED_BYTES:
                merge = partial(merge_weight, view, self.plan, tensor)
                view.put_weights({tensor: DerivedTensor.of(old, self._shape(tensor, old.shape), merge)})
            else:
                view.set_weight(tensor, merge_weight(view, self.plan, tensor, view.weight(tensor)))
        by_output = {node_key(node): node for node in view.graph.node}
        changed: dict[str, NodeProto] = {}
        for count in self.counts:
            if self.plan.touches(count.axis):
                new = self.plan.count_kept(count.axis, count.start, count.stop) // count.each
                node = changed.get(count.node, by_output[count.node])
                changed[count.node] = with_count(view, node, count, new, f"{count.node}_{count.place}")
        for select in self.selects:
            if self.plan.touches(select.axis) or self.plan.touches(select.source):
                changed[select.node] = self._renumber(view, changed.get(select.node, by_output[select.node]), select)
        view.substitute(changed)
        view.resize(sizes)
        view.drop_inferable_infos()
        return PassResult(modified=bool(self.plan.members))

    def _shape(self, tensor: str, shape: tuple[int, ...]) -> list[int]:
        new = list(shape)
        for axis in {member.axis for member, _ in self.plan.members[tensor]}:
            new[axis.axis] = self.plan.count_kept(axis, 0, shape[axis.axis] * axis.blocks) // axis.blocks
        return new

    def _new_lengths(self, view: GraphView, name: str) -> dict[int, int]:
        """Return the new lengths of axes of an input or output that lose channels."""
        axes = [Axis(name, axis) for axis in range(len(view.shape(name) or ()))]
        sizes = {axis: (view.shape(name) or ())[axis.axis] for axis in axes if self.plan.touches(axis)}
        return {axis.axis: self.plan.count_kept(axis, 0, size) for axis, size in sizes.items() if size is not None}

    def _renumber(self, view: GraphView, node: NodeProto, select: Select) -> NodeProto:
        old = view.weight(node.input[select.input_index])
        chosen = old[self.plan.kept_positions(select.axis, len(old))]
        # Negative positions count from an end that moves.
        new = [self.plan.count_kept(select.source, 0, int(position) % select.width) for position in chosen]
        indices = view.add_weight(f"{node_key(node)}_indices", np.array(new, old.dtype))
        return with_input(node, select.input_index, indices)

    def ensures(self, view: GraphView) -> None:
        """Check that every weight axis has the planned width."""
        for group, partition in self.plan:
            for member in group.members:
                last = self.plan.fold_member(member, partition).positions.max()
                width = view.weights[member.axis.tensor].shape[member.axis.axis] * member.axis.blocks
                if last >= width:
                    raise PassError(self.name, f"weight '{member.axis.tensor}' came out {width} wide", group.name)


def merge_weight(
    view: GraphView, plan: FoldPlan, tensor: str, values: Array, decoded: dict[Axis, Fold] | None = None
) -> Array:
    """Merge `values`, shaped like the weight `tensor` before the fold, along every axis that the plan folds.

    `decoded` gives folds to use along some axes instead of the plan's.
    """
    for axis, fold in (decoded or {}).items():
        values = merge_axis(values, axis.axis, axis.blocks, [fold])
    planned = ((m.axis, (m, p)) for m, p in plan.members.get(tensor, ()) if m.axis not in (decoded or {}))
    for axis, members in lists_by_key(planned).items():
        values = _merge_axis(view, axis, members, values)
    return values


def _merge_axis(view: GraphView, axis: Axis, members: list[tuple[Member, ChannelPartition]], values: Array) -> Array:
    role = members[0][0].role
    folds: list[Fold] = []
    for member, partition in members:
        selects = partition.only_selects or role is Role.GAIN
        read = role in (Role.CONSUMER, Role.BASIS)
        matrix = None if selects else partition.decode.T if read else partition.encode
        folds.append((member.positions, partition.representatives, matrix))
    if role is not Role.VARIANCE:
        return merge_axis(values, axis.axis, axis.blocks, folds)
    eps = epsilon(view, members[0][0])
    factor = 1.0 / np.sqrt(np.maximum(values.astype(np.float64), 0.0) + eps)
    merged = merge_axis(factor, axis.axis, axis.blocks, folds)
    return np.maximum(1.0 / merged**2 - eps, 0.0).astype(values.dtype)


def with_count(view: GraphView, node: NodeProto, count: Count, new: int, stem: str) -> NodeProto:
    """Return a node with another number in the attribute, or in a constant input of a new name, that holds a count."""
    if isinstance(count.place, int):
        # The constant may be read by other nodes, for which it counts something else.
        values = np.array(view.weight(node.input[count.place]))
        values.reshape(-1)[count.element or 0] = new
        return with_input(node, count.place, view.add_weight(stem, values))
    if attribute(node, count.place) is None:
        return node  # the operator takes the number from its weights
    if count.element is None:
        return rewritten(node, attributes={count.place: new})
    numbers = attr_ints(node, count.place)
    numbers[count.element] = new
    return rewritten(node, attributes={count.place: numbers})


@dataclass(frozen=True, eq=False)
class LumpDuplicates(Pass):
    """Give the first of several equal channels the sum of their consumer columns, and the others zeros.

    The network computes the same, since equal channels carry equal values. How a sum was spread over the columns of
    equal channels says nothing about a row; without this, rows that differ in nothing else would look
    dissimilar, and a repair would correct a loss of variance that the fold does not cause.
    """

    groups: tuple[FoldGroup, ...]
    #: Classes of equal channels per group, see :func:`onnxfold.cluster.duplicates.find_duplicates`.
    duplicates: tuple[Labels, ...]

    def run(self, view: GraphView) -> PassResult:
        """Rewrite the columns of every group that has duplicates."""
        modified = False
        for group, classes in zip(self.groups, self.duplicates, strict=True):
            merge = mean_partition(classes)
            for member in () if merge.is_identity else group.with_role(Role.CONSUMER):
                columns = rows_of(view, member)
                lumped = np.zeros_like(columns)
                np.add.at(lumped, merge.representatives[merge.labels], columns)
                if not np.array_equal(lumped, columns):
                    put_rows_of(view, member, lumped)
                    modified = True
        return PassResult(modified)
