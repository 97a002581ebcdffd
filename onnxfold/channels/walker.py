"""Fold groups from declarations: one walk over the graph, one union of positions.

ARCHITECTURE.md says what units are, and which of them form a :class:`FoldGroup`. A fold is then nothing but a selection
of positions: with a representative unit per cluster, each axis keeps the positions of the representatives in their old
order, and links map kept positions to kept positions. Only the weights' *values* differ from a selection, by the encode
and decode matrices.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from onnxfold.channels import constraints
from onnxfold.channels.context import CannotDeclareError, NodeContext, find_rule
from onnxfold.channels.declarations import Apart, Axis, Block, Declaration, EqualBlocks, Link, Repeat, Role, Tie, Use
from onnxfold.channels.elements import Elements, Occurrences
from onnxfold.channels.group import Allowed, ChannelAnalysis, FoldGroup, Member, WidthRules, lists_by_key
from onnxfold.channels.layers import linear
from onnxfold.graph.nodes import node_key, subgraphs
from onnxfold.graph.view import GraphView
from onnxfold.report import Refusal, RefusalKind

_UNEQUAL = "without these channels, the parts that it cuts the axis into would become unequal"
_AMONG_OTHERS = (
    "its mean and variance are taken over these channels together with others that are no part of this group"
)

_SIDES = {Role.PRODUCER: "outputs", Role.CONSUMER: "inputs"}


def find_groups(view: GraphView, ties: Sequence[Tie] = (), *, streams: bool = False) -> ChannelAnalysis:
    """Find the fold groups of a normalised graph."""
    declared = declare(view, ties)
    norm_streams = constraints.find_streams(view, declared) if streams else constraints.Streams()
    while True:
        declarations = _settle_repeats(view, constraints.with_streams(declared, norm_streams))
        elements = Elements(view, declarations)
        groups, extra_blocks = _build_groups(view, elements, declarations)
        settled = [constraints.settled_tie(groups, tie) for tie in ties]
        if settled != list(ties):
            return find_groups(view, settled, streams=streams)
        tied = (constraints.with_tie(group, ties) for group in groups)
        groups = constraints.with_rotations(view, tied, declarations)
        held = constraints.streams_of_groups(norm_streams, groups)
        if len(held.readers) == len(norm_streams.readers):
            break
        norm_streams = held
    groups = [constraints.with_norms(view, group, norm_streams) for group in groups]
    refusals = _refusals(view, elements, declarations, groups, extra_blocks)
    return ChannelAnalysis.of(groups, refusals, declarations)


def declare(view: GraphView, ties: Sequence[Tie] = ()) -> list[Declaration]:
    """Collect what the rules say about every node, and keep the model's interface fixed, but for ties."""
    tied = {axis: tie.reason for tie in ties for axis in tie.axes}
    live: set[Axis] = set()
    declarations: list[Declaration] = []
    for node in view.nodes:
        declarations += declare_node(NodeContext(view, node, live))
    for kind, names in (("input", view.input_names), ("output", view.output_names)):
        for name in names:
            stays = f"it is the model's {kind} '{name}', whose shape must stay"
            for axis in (Axis(name, i) for i in range(len(view.shape(name) or ()))):
                reason = tied.get(axis, stays)
                declarations += [Block(axis, reason, "", RefusalKind.INTERFACE)] if reason else []
    return constraints.with_bases(view, declarations)


def declare_node(context: NodeContext) -> list[Declaration]:
    """Collect what the rule of a node says about it, and block what it leaves out."""
    rule = find_rule(context.node.domain, context.op_type, context.version)
    if rule is None:
        has_body = any(True for _ in subgraphs(context.node))
        reason = (
            "it is read inside a subgraph" if has_body else "no channel rule says how this operator treats the axis"
        )
    else:
        reason = rule.mixes
        try:
            rule.declare(context)
            if rule.carries:
                context.rotate_what_passes()
        except CannotDeclareError as refusal:
            context.rollback()
            reason = str(refusal)
    context.refuse_rest(reason)
    return context.declarations


def _settle_repeats(view: GraphView, declarations: list[Declaration]) -> list[Declaration]:
    """Say of every repetition what it means: a link where the repeated channels may go, else parts of equal lengths.

    A single repeated channel does not go. Repetitions whose results are the same channels, as those of keys and of
    values, mean the same.
    """
    repeats = [d for d in declarations if isinstance(d, Repeat)]
    if not repeats:
        return declarations
    elements = Elements(view, declarations)
    blocked = _block_units(elements, declarations).mask
    results = {id(d): set(elements.units_on(d.result, d.result_positions).tolist()) for d in repeats}
    sources = {id(d): elements.units_on(d.source, d.source_positions) for d in repeats}
    staying = {id(d) for d in repeats if d.blocks == 1 or blocked[sources[id(d)]].any()}
    while more := {
        key for key, units in results.items() if key not in staying and any(units & results[other] for other in staying)
    }:
        staying |= more
    return [_meaning(d, stays=id(d) in staying) if isinstance(d, Repeat) else d for d in declarations]


def _meaning(repeat: Repeat, *, stays: bool) -> Declaration:
    if stays:
        return EqualBlocks(repeat.result, repeat.blocks, repeat.node)
    return Link(repeat.source, repeat.result, repeat.source_positions, repeat.result_positions)


class _BlockedUnits:
    """The units that must stay, each with the first reason why; axes of pictures have millions of them."""

    def __init__(self, unit_count: int) -> None:
        self._reasons: list[Block] = []
        self._which = np.full(unit_count, -1, np.int32)

    def add(self, units: npt.NDArray[np.int64], why: Block) -> None:
        """Block units; those that are blocked already keep their reason."""
        self._which[units[self._which[units] < 0]] = len(self._reasons)
        self._reasons.append(why)

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Whether each unit is blocked."""
        return self._which >= 0

    def first(self, units: npt.NDArray[np.int64]) -> Block | None:
        """Return the reason of the first of some units that is blocked, None if none is."""
        numbers = self._which[units]
        numbers = numbers[numbers >= 0]
        return self._reasons[numbers[0]] if len(numbers) else None


def _block_units(elements: Elements, declarations: Iterable[Declaration]) -> _BlockedUnits:
    blocked = _BlockedUnits(elements.unit_count)
    cuts = lists_by_key(((axis.tensor, axis.axis), axis) for axis in elements.axes)
    waiting = dict(cuts)  # a packed axis must stay where the plain one must
    for d in declarations:
        if isinstance(d, Block):
            for axis in waiting.pop((d.axis.tensor, d.axis.axis), ()):
                blocked.add(elements.units_on(axis), d)
    # So must weight axes that different nodes use in different roles, or cut differently.
    uses = lists_by_key(((d.axis.tensor, d.axis.axis), d) for d in declarations if isinstance(d, Use))
    for (tensor, _), axes in cuts.items():
        for axis in axes if len(axes) > 1 else ():
            reason = f"'{tensor}' is read by nodes that cut this axis into different groups"
            blocked.add(elements.units_on(axis), Block(axis, reason, ""))
    for (tensor, _), axis_uses in uses.items():
        if len({u.role for u in axis_uses}) > 1 or len({u.axis for u in axis_uses}) > 1:
            reason = f"the weight '{tensor}' is shared by nodes that use this axis in different ways"
            for axis in dict.fromkeys(u.axis for u in axis_uses):
                blocked.add(elements.units_on(axis), Block(axis, reason, axis_uses[-1].node))
    return blocked


def _build_groups(
    view: GraphView, elements: Elements, declarations: list[Declaration]
) -> tuple[list[FoldGroup], _BlockedUnits]:
    blocked = _block_units(elements, declarations)
    uses = lists_by_key((d.axis, d) for d in declarations if isinstance(d, Use))
    foldable = np.zeros(elements.unit_count, bool)
    for axis, axis_uses in uses.items():
        if axis_uses[0].role is Role.PRODUCER:
            foldable[elements.units_on(axis)] = True
    foldable[blocked.mask] = False

    occurrences = Occurrences(elements, foldable)
    by_signature = lists_by_key((signature, unit) for unit, signature in occurrences.signatures())
    equal = [d for d in declarations if isinstance(d, EqualBlocks)]
    apart = {d.axis for d in declarations if isinstance(d, Apart)}
    groups = []
    for units in by_signature.values():
        group, ordered = _make_group(view, occurrences, units, uses)
        if not apart.isdisjoint(group.tensors):
            group = replace(group, allowed=Allowed.SELECT)
        declared = [constraint for constraint in equal if constraint.axis in group.places]
        if declared:
            widths = {c.axis: len(elements.units_on(c.axis)) for c in declared}
            parts = [(group.places[c.axis] // (widths[c.axis] // c.blocks), c.blocks) for c in declared]
            kept, blocks = constraints.equal_cells(parts)
            averaged = next((c for c in declared if c.averaged), None)
            if averaged is not None and group.places[averaged.axis][kept].size < widths[averaged.axis]:
                kept, blocks = kept[:0], blocks[:0]
            reason = _UNEQUAL if averaged is None else _AMONG_OTHERS
            why = averaged or declared[0]
            blocked.add(np.delete(ordered, kept), Block(why.axis, reason, why.node))
            has_blocks = bool(len(kept) and blocks.max())
            group = _subset(group, kept, WidthRules(blocks if has_blocks else None, averaged is not None))
        if group.size > 1:
            groups.append(group)
    order = {node_key(node): i for i, node in enumerate(view.nodes)}
    groups.sort(key=lambda g: min(order[u.node] for m in g.with_role(Role.PRODUCER) for u in m.uses))
    names, named = Counter[str](), []
    for group in groups:
        names[group.name] += 1
        number = names[group.name]
        named.append(group if number == 1 else replace(group, name=f"{group.name}#{number}"))
    return named, blocked


def _subset(group: FoldGroup, kept: npt.NDArray[np.int64], rules: WidthRules) -> FoldGroup:
    """Return a group of some of its units, with rules for its widths."""
    members = tuple(replace(m, positions=m.positions[kept]) for m in group.members)
    tensors = {axis: positions[kept] for axis, positions in group.tensors.items()}
    return replace(group, size=len(kept), members=members, tensors=tensors, rules=rules)


def _make_group(
    view: GraphView, occurrences: Occurrences, units: list[int], uses: dict[Axis, list[Use]]
) -> tuple[FoldGroup, npt.NDArray[np.int64]]:
    """Return a group of units, and the units in the order in which it holds them."""
    positions = occurrences.positions(units)
    first = next(axis for axis in positions if axis in uses and uses[axis][0].role is Role.PRODUCER)
    order = np.argsort(positions[first][:, 0], kind="stable")
    positions = {axis: places[order] for axis, places in positions.items()}
    members = tuple(Member(axis, places, tuple(uses[axis])) for axis, places in positions.items() if axis in uses)
    producers = (member for member in members if member.role is Role.PRODUCER)
    nodes = tuple(dict.fromkeys(node_name(view, use.node) for member in producers for use in member.uses))
    tensors = {axis: places for axis, places in positions.items() if not view.is_weight(axis.tensor)}
    return FoldGroup(nodes[0], len(units), members, tensors, nodes), np.array(units, np.int64)[order]


def _refusals(
    view: GraphView, elements: Elements, declarations: list[Declaration], groups: list[FoldGroup],
    blocked: _BlockedUnits,
) -> list[Refusal]:  # fmt: skip
    """Return a refusal for every weight axis of a linear operator with channels outside of all groups."""
    grouped = Counter[Axis]()
    for member in (member for group in groups for member in group.members):
        grouped[member.axis] += member.positions.size
    refusals: dict[Axis, Refusal] = {}
    uses = [d for d in declarations if isinstance(d, Use)]
    used = {(d.axis.tensor, d.axis.axis) for d in uses}
    for d in uses:
        units = elements.units_on(d.axis)
        free = len(units) - grouped[d.axis]
        if d.role in _SIDES and d.axis not in refusals and free and len(units) > 1:
            why = blocked.first(units) or Block(d.axis, "only one channel of its kind", d.node)
            refusals[d.axis] = _refusal(view, d.node, d.axis, _SIDES[d.role], why, free / len(units))
    for block in (d for d in declarations if isinstance(d, Block)):  # of operators that refused to say anything
        axis = block.axis
        if view.is_weight(axis.tensor) and (axis.tensor, axis.axis) not in used:
            shape = view.weights[axis.tensor].shape
            has_channels = len(shape) > 1 and axis.axis < 2 and shape[axis.axis] > 1
            if has_channels and linear(view, view.producer(block.node)) is not None:
                refusals.setdefault(axis, _refusal(view, block.node, axis, "axis", block, 1.0))
    return sorted(refusals.values(), key=lambda r: (-r.weights, r.node, r.axis))


def _refusal(view: GraphView, owner: str, axis: Axis, side: str, why: Block, part: float) -> Refusal:
    holder, blocker = view.producer(owner), view.producer(why.node)
    op_type = "" if blocker is None else blocker.op_type
    place = f"{op_type} '{node_name(view, why.node)}': ".lstrip() if why.node else ""
    return Refusal(
        node=node_name(view, owner),
        op_type="" if holder is None else holder.op_type,
        axis=f"{side} of weight '{axis.tensor}' (axis {axis.axis})",
        reason=place + why.reason,
        weights=round(view.weight_size(axis.tensor) * part),
        kind=why.kind,
        weight=axis.tensor,
    )


def node_name(view: GraphView, output: str) -> str:
    """Return a node's name, or its first output where it has none."""
    node = view.producer(output)
    return (node.name or output) if node is not None else output
