"""Groups whose channels may be rotated: any orthonormal basis of them will do.

Weights that are identity matrices are spare there: :mod:`passes.normalize.factor_tables` writes such a product behind a
table, so that the table may become narrower than what reads it; :mod:`passes.normalize.factor_queries` writes one in
front of a product. While the group is whole the identity computes nothing, and is not written into the folded graph.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from math import prod

import numpy as np

from onnxfold.channels.declarations import Axis, Declaration, Role, Rotatable
from onnxfold.channels.group import Allowed, FoldGroup, Seam
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import is_part

#: Roles that an orthonormal basis changes; nothing else may hold an entry per channel.
_LINEAR = frozenset({Role.PRODUCER, Role.CONSUMER, Role.BASIS, Role.BIAS, Role.PARAMETER, Role.GAIN})
#: Roles of a spare identity matrix: behind a table, and in front of a product.
_SPARE = (Role.CONSUMER, Role.BASIS, Role.PRODUCER)


def with_rotations(view: GraphView, groups: Iterable[FoldGroup], declarations: list[Declaration]) -> list[FoldGroup]:
    """Return the groups, with what is known of their rotations."""
    by_axis: dict[Axis, set[str]] = defaultdict(set)
    for d in declarations:
        if isinstance(d, Rotatable):
            by_axis[d.axis].add(d.node)
    return [_as_rotatable(view, group) if _rotates(view, group, by_axis) else group for group in groups]


def _as_rotatable(view: GraphView, group: FoldGroup) -> FoldGroup:
    parts = [is_part(view, member.axis.tensor) for member in group.with_role(Role.PRODUCER)]
    return with_spare(view, replace(group, allowed=Allowed.ROTATE, seam=Seam(of_some_rows=parts == [True])), _SPARE)


def _rotates(view: GraphView, group: FoldGroup, by_axis: dict[Axis, set[str]]) -> bool:
    if group.apart or group.averaged or group.tie is not None:
        return False
    if any(m.role not in _LINEAR or m.positions.shape[1] > 1 for m in group.members):
        return False
    if any(positions.shape[1] > 1 for positions in group.tensors.values()):
        return False
    return all(_nodes_at(view, axis.tensor) <= by_axis.get(axis, set()) for axis in group.tensors)


def _nodes_at(view: GraphView, tensor: str) -> set[str]:
    """Return the nodes that write or read a tensor."""
    writer = view.producer(tensor)
    return {node_key(node) for node in (*view.consumers(tensor), *([writer] if writer is not None else ()))}


def with_spare(view: GraphView, group: FoldGroup, roles: Collection[Role]) -> FoldGroup:
    """Return a group that may be rotated, with the identity matrices that it needs only once it is narrower."""
    held = (m.axis.tensor for m in group.members if m.role in roles)
    spare = tuple(dict.fromkeys(tensor for tensor in held if is_identity(view, tensor)))
    if not spare:
        return group
    each = {m.axis.tensor: view.weight_size(m.axis.tensor) // group.size for m in group.members}
    saved = sum(size for tensor, size in each.items() if tensor not in spare)
    # Narrower by one channel, all weights of the group count: those that are spare no longer are.
    widest = (group.size * saved - 1) // (saved + sum(each[tensor] for tensor in spare))
    return replace(group, seam=replace(group.seam, spare=spare, widest=max(widest, 1)))


def is_identity(view: GraphView, weight: str) -> bool:
    """Whether a weight is an identity matrix."""
    shape = view.weights[weight].shape
    if len(shape) != 2 or shape[0] != shape[1] or prod(shape) < 2:
        return False
    values = view.weight(weight)
    return bool((values.diagonal() == 1).all()) and np.count_nonzero(values) == len(values)
