"""Residual streams: channels that norms take the length of, and that any orthonormal basis will do for.

A norm divides a stream by its length, which no orthonormal basis changes, and scales every channel. Once the scale is
in the weights that read the result, stream and result are the same channels, and may be rotated. Three things stand in
the way: what reads the result is no weight, as in networks that add it to the stream again (post-norm); the scales of
two norms would have to go into the same weight; or a node on the way treats single channels. The norm then keeps the
stream as it is, as it does wherever streams are not asked for.

Groups whose channels may be rotated: any orthonormal basis of them will do.

Weights that are identity matrices are spare there: a seam (:mod:`passes.seams`) writes such a product behind a table,
so that the table may become narrower than what reads it, or in front of a product. While the group is whole the
identity computes nothing, and is not written into the folded graph.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from onnxfold.channels.declarations import Axis, Block, Declaration, Link, Norm, Role, Rotatable, Use
from onnxfold.channels.elements import Elements
from onnxfold.channels.group import Allowed, FoldGroup, ScaledNorm, Seam
from onnxfold.graph.nodes import node_key
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import is_part
from onnxfold.report import RefusalKind

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
    rotated = []
    for group in groups:
        if _rotates(view, group, by_axis):
            parts = [is_part(view, member.axis.tensor) for member in group.with_role(Role.PRODUCER)]
            bare = replace(group, allowed=Allowed.ROTATE, seam=Seam(of_some_rows=parts == [True]))
            rotated.append(with_spare(view, bare, _SPARE))
        else:
            rotated.append(group)
    return rotated


def _rotates(view: GraphView, group: FoldGroup, by_axis: dict[Axis, set[str]]) -> bool:
    if group.apart or group.rules.averaged or group.rules.tie is not None:
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


_ADDED = "what it scales is added to a stream again (post-norm), so its scale cannot go into weights that read it"
_SHARED = "its scale would have to go into weights that read something else, too"
_TOO_WIDE = "to rotate this stream takes too many moments: a matrix per weight that reads it"
#: Most numbers in the moments of what reads the streams of a graph.
_MOST_MOMENTS = 2.5e8


@dataclass(frozen=True, eq=False)
class Streams:
    """Norms of a graph whose scales can move, and reasons why others cannot."""

    #: Norms over channels that may be rotated, each with the weight axes that read its result.
    readers: dict[Norm, tuple[Axis, ...]] = field(default_factory=dict)
    #: Why the others keep their channels, by node, where their own rule does not say it.
    reasons: dict[str, str] = field(default_factory=dict)


def find_streams(view: GraphView, declared: Sequence[Declaration]) -> Streams:
    """Return the norms whose scales can go into what reads their results."""
    norms = [d for d in declared if isinstance(d, Norm)]
    if not norms:
        return Streams()
    elements = Elements(view, declared)
    results = [_units(elements, [norm.result]) for norm in norms]
    roles: dict[int, dict[Axis, Role]] = {unit: {} for units in results for unit in units}
    for d in declared:
        if isinstance(d, Use):
            for unit in _units(elements, [d.axis]) & roles.keys():
                roles[unit][d.axis] = d.role
    met: dict[int, int] = defaultdict(int)
    for norm, units in zip(norms, results, strict=True):
        for unit in units | _units(elements, norm.sources):
            met[unit] += 1
    streams = Streams()
    for norm, units in zip(norms, results, strict=True):
        read = {axis: role for unit in units for axis, role in roles[unit].items()}
        if any(role in (Role.PRODUCER, Role.BIAS) for role in read.values()):
            streams.reasons[norm.node] = _ADDED
        elif len(view.consumers(norm.scale.tensor)) > 1 or any(met[unit] > 1 for unit in units):
            streams.reasons[norm.node] = _SHARED
        elif read and set(read.values()) == {Role.CONSUMER}:
            streams.readers[norm] = tuple(read)
    if sum(len(axes) * norm.width**2 for norm, axes in streams.readers.items()) > _MOST_MOMENTS:
        return Streams({}, streams.reasons | {norm.node: _TOO_WIDE for norm in streams.readers})
    return streams


def _units(elements: Elements, axes: Iterable[Axis]) -> set[int]:
    return {unit for axis in axes if axis in elements.offset for unit in elements.units_on(axis).tolist()}


def with_streams(declared: Iterable[Declaration], streams: Streams) -> list[Declaration]:
    """Return declarations in which norms of streams link channels, and all others block them."""
    lifted = {(norm.node, axis.tensor, axis.axis) for norm in streams.readers for axis in _axes(norm)}
    declarations: list[Declaration] = []
    for d in declared:
        if isinstance(d, Block):
            if (d.node, d.axis.tensor, d.axis.axis) not in lifted:
                why = streams.reasons.get(d.node)
                declarations.append(d if why is None else replace(d, reason=why, kind=RefusalKind.STREAM))
        elif not isinstance(d, Norm):
            declarations.append(d)
    used = {d.axis for d in declarations if isinstance(d, Use)}
    for norm in streams.readers:
        first, *others = norm.sources
        linked = [(first, axis) for axis in (*others, norm.result)]
        for vector, role, axis in (
            (norm.scale, Role.GAIN, norm.result),
            (norm.shift, Role.GAIN, norm.result),
            (norm.bias, Role.BIAS, first),
        ):
            if vector is not None and vector not in used:
                declarations.append(Use(vector, role, norm.node, axis))
                linked.append((vector, axis))
        every = np.arange(norm.width)
        declarations += [Link(a, b, every, every) for a, b in linked]
        declarations += [Rotatable(axis, norm.node) for axis in (*norm.sources, norm.result)]
    return declarations


def _axes(norm: Norm) -> list[Axis]:
    return [*norm.sources, norm.result, *(axis for axis in (norm.scale, norm.shift, norm.bias) if axis is not None)]


def streams_of_groups(streams: Streams, groups: Iterable[FoldGroup]) -> Streams:
    """Return the streams all channels of which are a group that may be rotated."""
    rotated = [group for group in groups if group.rotates]
    held = {
        norm: axes
        for norm, axes in streams.readers.items()
        if any(_holds(group, norm) for group in rotated)
    }  # fmt: skip
    return replace(streams, readers=held)


def _holds(group: FoldGroup, norm: Norm) -> bool:
    return group.size == norm.width and all(axis in group.tensors for axis in (*norm.sources, norm.result))


def with_norms(view: GraphView, groups: Iterable[FoldGroup], streams: Streams) -> list[FoldGroup]:
    """Return the groups, each with the norms over its channels."""
    with_scales = []
    for group in groups:
        norms = [norm for norm in streams.readers if group.rotates and _holds(group, norm)]
        if norms:
            scaled = tuple(
                ScaledNorm(n.scale.tensor, n.shift.tensor if n.shift else "", streams.readers[n], n.centred)
                for n in norms
            )
            with_scales.append(with_spare(view, replace(group, norms=scaled), (Role.PRODUCER, Role.CONSUMER)))
        else:
            with_scales.append(group)
    return with_scales
