"""Channels that only go together, parts of grouped convolutions that stay equal, and channels that may be rotated.

docs/mathematics.md says how.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import numpy.typing as npt
from onnx import NodeProto

from onnxfold.channels.declarations import Axis, Block, Declaration, Link, Norm, Role, Rotatable, Tie, Use
from onnxfold.channels.elements import Elements
from onnxfold.channels.group import Allowed, FoldGroup, Seam, lists_by_key
from onnxfold.channels.layers import linear
from onnxfold.graph.nodes import attr_ints, node_key
from onnxfold.graph.view import GraphView
from onnxfold.language.lookups import is_part, looks_up
from onnxfold.report import RefusalKind

Index = npt.NDArray[np.int64]

#: More cells than this are not looked through.
_MOST_CELLS = 1024
#: Numbers of channels per cell that are tried, the largest first.
_MOST_SIZES = 16


def equal_cells(parts: list[tuple[Index, int]]) -> tuple[Index, Index]:
    """Return the channels that take part, and the cell of each."""
    positions = np.concatenate([of_part for of_part, _ in parts], axis=1)
    _, first, cells, sizes = np.unique(positions, return_index=True, return_inverse=True, return_counts=True, axis=0)
    cells = cells.reshape(-1)
    places = [np.array([np.bincount(of_part[unit], minlength=n) for unit in first]).T for of_part, n in parts]
    options = ((size, _even(places, sizes >= size)) for size in sorted(set(sizes.tolist()), reverse=True)[:_MOST_SIZES])
    size, chosen = max(options, key=lambda option: option[0] * len(option[1]))
    members = [np.flatnonzero(cells == c)[:size] for c in chosen]
    kept = np.sort(np.concatenate([np.zeros(0, np.int64), *members]))
    return kept, np.searchsorted(chosen, cells[kept])


def _even(places: list[Index], usable: npt.NDArray[np.bool_]) -> Index:
    """Return the largest set of usable cells of which every part of a constraint holds equally many places."""
    sums = [matrix[:, usable].sum(axis=1) for matrix in places]
    if all((total == total[0]).all() for total in sums):
        return np.flatnonzero(usable)
    count = len(usable)
    if count > _MOST_CELLS:
        return np.zeros(0, np.int64)
    from scipy.optimize import Bounds, LinearConstraint, milp  # takes a while to import, and is seldom needed

    shared = np.repeat(np.eye(len(places)), [len(matrix) for matrix in places], axis=0)
    rows = np.concatenate([np.concatenate(places), -shared], axis=1)  # places of the set in each part, less t_q
    most = [float(matrix.sum()) for matrix in places]
    solved = milp(
        np.concatenate([-np.ones(count), np.zeros(len(places))]),
        constraints=LinearConstraint(rows, 0.0, 0.0),
        integrality=np.ones(count + len(places)),
        bounds=Bounds(0.0, np.concatenate([usable.astype(float), most])),
    )
    return np.flatnonzero(np.round(solved.x[:count])) if solved.success else np.zeros(0, np.int64)


def with_tie(group: FoldGroup, ties: Sequence[Tie]) -> FoldGroup:
    """Return a group with the number of the tie that it is held by; most groups are held by none."""
    free = (number for number, tie in enumerate(ties) if not tie.reason and len(tie.axes) > 1)
    held = (number for number in free if any(axis in group.tensors for axis in ties[number].axes))
    return replace(group, rules=replace(group.rules, tie=next(held, None)))


def settled_tie(groups: Sequence[FoldGroup], tie: Tie) -> Tie:
    """Return a tie; one with an axis that must stay gets that as its reason."""
    if tie.reason or len(tie.axes) < 2:
        return tie
    holders = {axis: [group for group in groups if axis in group.tensors] for axis in tie.axes}
    first = next((holding[0] for holding in holders.values() if holding), None)
    for axis, holding in holders.items():
        # All groups can take the same widths, and each of their channels has one place on the axis.
        is_alone = first is not None and len(holding) == 1 and holding[0].tensors[axis].shape[1] == 1
        if not is_alone or len({(group.size, group.block_count) for group in (*holding, first) if group}) > 1:
            return replace(tie, reason=f"it must stay as long as the same axis of '{axis.tensor}', which cannot change")
    return tie


def with_bases(view: GraphView, declarations: list[Declaration]) -> list[Declaration]:
    """Return declarations in which rows of tables that are looked up and scored by produce channels, and bases read."""
    roles: dict[Axis, Role] = {}
    for table in dict.fromkeys(node.input[0] for node in view.nodes if looks_up(view, node, 1)):
        bases: list[Axis] = []  # behind lookups of columns of A, and in front of products with A
        for node in view.consumers(table):
            product = view.producer(node.input[0])
            if looks_up(view, node, 1) and node.input[0] == table:
                bases += [Axis(basis.input[1], 0) for basis in _products_of(view, node)]
            elif _multiplies(view, node) and node.input[1] == table and product is not None:
                bases += [Axis(product.input[1], 1)] if _multiplies(view, product) else []
        if {basis.axis for basis in bases} == {0, 1} and len(bases) == len(view.consumers(table)):
            roles |= {Axis(table, 0): Role.PRODUCER, **dict.fromkeys(bases, Role.BASIS)}
    if not roles:
        return declarations
    return [replace(d, role=roles.get(d.axis, d.role)) if isinstance(d, Use) else d for d in declarations]


def _products_of(view: GraphView, lookup: NodeProto) -> Iterable[NodeProto]:
    """Yield the product with a basis that alone reads what is looked up, through a Transpose that puts rows last."""
    readers = view.consumers(lookup.output[0])
    if len(readers) != 1 or readers[0].op_type != "Transpose" or lookup.output[0] in view.output_names:
        return
    perm = attr_ints(readers[0], "perm")
    turned = view.consumers(readers[0].output[0])
    if perm == [*range(1, len(perm)), 0] and len(turned) == 1 and readers[0].output[0] not in view.output_names:
        yield from (node for node in turned if _multiplies(view, node) and node.input[0] == readers[0].output[0])


def _multiplies(view: GraphView, node: NodeProto) -> bool:
    """Whether a node multiplies by a matrix, and does nothing else."""
    operator = linear(view, node)
    if operator is None or not operator.weight or operator.rows != Axis(operator.weight, 1) or node.attribute:
        return False
    return list(node.input[1:]) == [operator.weight] and len(view.weights[operator.weight].shape) == 2


#: Roles that an orthonormal basis changes; nothing else may hold an entry per channel.
_LINEAR = frozenset({Role.PRODUCER, Role.CONSUMER, Role.BASIS, Role.BIAS, Role.PARAMETER, Role.GAIN})
#: Roles of a spare identity matrix: behind a table, and in front of a product.
_SPARE = (Role.CONSUMER, Role.BASIS, Role.PRODUCER)


def with_rotations(view: GraphView, groups: Iterable[FoldGroup], declarations: list[Declaration]) -> list[FoldGroup]:
    """Return the groups, with what is known of their rotations."""
    by_axis = lists_by_key((d.axis, d.node) for d in declarations if isinstance(d, Rotatable))
    return [_rotated(view, group) if _rotates(view, group, by_axis) else group for group in groups]


def _rotated(view: GraphView, group: FoldGroup) -> FoldGroup:
    parts = [is_part(view, member.axis.tensor) for member in group.with_role(Role.PRODUCER)]
    bare = replace(group, allowed=Allowed.ROTATE, seam=Seam(of_some_rows=parts == [True]))
    return with_spare(view, bare, _SPARE)


def _rotates(view: GraphView, group: FoldGroup, by_axis: Mapping[Axis, list[str]]) -> bool:
    if group.blocks is not None or group.apart or group.rules.averaged or group.rules.tie is not None:
        return False
    repeats = any(positions.shape[1] > 1 for positions in group.places.values())
    if repeats or any(m.role not in _LINEAR for m in group.members):
        return False
    touching = {axis: (view.producer(axis.tensor), *view.consumers(axis.tensor)) for axis in group.tensors}
    return all(node is None or node_key(node) in by_axis.get(axis, ()) for axis in touching for node in touching[axis])


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
    results = [_units(elements, [norm.axis]) for norm in norms]
    roles: dict[int, dict[Axis, Role]] = {unit: {} for units in results for unit in units}
    for d in declared:
        if isinstance(d, Use):
            for unit in _units(elements, [d.axis]) & roles.keys():
                roles[unit][d.axis] = d.role
    every = (units | _units(elements, norm.sources) for norm, units in zip(norms, results, strict=True))
    met = Counter(unit for units in every for unit in units)
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
    return {unit for axis in axes for unit in elements.units_on(axis).tolist()}


def with_streams(declared: Iterable[Declaration], streams: Streams) -> list[Declaration]:
    """Return declarations in which norms of streams link channels, and all others block them."""
    lifted = {
        (norm.node, axis)
        for norm in streams.readers
        for axis in (*norm.sources, norm.axis, norm.scale, norm.shift, norm.bias)
    }
    declarations: list[Declaration] = []
    for d in declared:
        if isinstance(d, Block) and d.node in streams.reasons:
            d = replace(d, reason=streams.reasons[d.node], kind=RefusalKind.STREAM)
        if not (isinstance(d, Norm) or (isinstance(d, Block) and (d.node, d.axis) in lifted)):
            declarations.append(d)
    used = {d.axis for d in declarations if isinstance(d, Use)}
    for norm in streams.readers:
        first, *others = norm.sources
        linked = [(first, axis) for axis in (*others, norm.axis)]
        for vector, role in ((norm.scale, Role.GAIN), (norm.shift, Role.GAIN), (norm.bias, Role.BIAS)):
            if vector is not None and vector not in used:
                axis = first if role is Role.BIAS else norm.axis
                declarations.append(Use(vector, role, norm.node, axis))
                linked.append((vector, axis))
        every = np.arange(norm.width)
        declarations += [Link(a, b, every, every) for a, b in linked]
        declarations += [Rotatable(axis, norm.node) for axis in (*norm.sources, norm.axis)]
    return declarations


def streams_of_groups(streams: Streams, groups: Sequence[FoldGroup]) -> Streams:
    """Return the streams all channels of which are a group that may be rotated."""
    held = {norm: axes for norm, axes in streams.readers.items() if any(_holds(group, norm) for group in groups)}
    return replace(streams, readers=held)


def _holds(group: FoldGroup, norm: Norm) -> bool:
    lies_there = all(axis in group.tensors for axis in (*norm.sources, norm.axis))
    return lies_there and group.rotates and group.size == norm.width


def with_norms(view: GraphView, group: FoldGroup, streams: Streams) -> FoldGroup:
    """Return a group with the norms over its channels."""
    norms = {norm: readers for norm, readers in streams.readers.items() if _holds(group, norm)}
    return with_spare(view, replace(group, norms=norms), (Role.PRODUCER, Role.CONSUMER)) if norms else group
