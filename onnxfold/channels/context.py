"""Channel rules: the view that each has of one node, the declarations that it makes, and the registry of all rules."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from onnx import NodeProto

from onnxfold.channels.declarations import (
    MAX_WIDTH,
    Apart,
    Axis,
    Block,
    Computation,
    Count,
    Declaration,
    EqualBlocks,
    Link,
    Norm,
    Positions,
    Repeat,
    Role,
    Rotatable,
    Select,
    Use,
)
from onnxfold.graph.nodes import read_names
from onnxfold.graph.registry import NodeReader, OperatorRegistry
from onnxfold.graph.tensors import Shape
from onnxfold.graph.view import GraphView

#: Positions of channels on an axis; None for all of them in their order.
Places = Positions | Sequence[int] | None


class CannotDeclareError(Exception):
    """Raised by a rule to leave the whole node alone; the text is the reason shown to the user."""


class NodeContext(NodeReader):
    """One node, its shapes and constants, and the declarations made about it."""

    def __init__(self, view: GraphView, node: NodeProto, live: set[Axis]) -> None:
        super().__init__(view, node)
        self.declarations: list[Declaration] = []
        self._live = live
        #: Axes that this node's declarations, and no earlier ones, made live.
        self._revived: list[Axis] = []
        self._mentioned: set[tuple[str, int]] = set()

    def shape(self, tensor: str) -> Shape:
        """Return the dimensions of a tensor of known rank."""
        shape = self.view.shape(tensor)
        if shape is None:
            raise CannotDeclareError(f"the shape of '{tensor}' is unknown; give it with --input-shapes")
        return shape

    def rank(self, tensor: str) -> int:
        """Return the number of dimensions."""
        return len(self.shape(tensor))

    def width(self, axis: Axis) -> int | None:
        """Return the number of positions on an axis, None if unknown."""
        size = self.shape(axis.tensor)[axis.axis]
        return None if size is None or size > MAX_WIDTH else size * axis.blocks

    def constant_ints(self, index: int, what: str) -> list[int]:
        """Return a constant integer input."""
        values = self.constant(index)
        if values is None:
            raise CannotDeclareError(f"{what} computed at run time cannot follow a new channel count")
        return [int(v) for v in np.asarray(values).reshape(-1)]

    def weight(self, index: int, what: str) -> str:
        """Return the name of an input that must be constant."""
        if not self.is_constant(index):
            raise CannotDeclareError(f"{what} is computed at run time")
        return self.input(index)

    def is_live(self, axis: Axis) -> bool:
        """Whether the axis carries channels that a weight produced."""
        return axis in self._live

    def axis(self, tensor: str, axis: int, blocks: int = 1) -> Axis:
        """Return an :class:`Axis`; negative numbers count from the end."""
        rank = self.rank(tensor)
        return Axis(tensor, axis % rank if rank else 0, blocks)

    def link(self, a: Axis, b: Axis, a_positions: Places = None, b_positions: Places = None) -> None:
        """Declare that positions of `a` and `b` are the same channels, one to one by default.

        A constant that is linked like an activation holds a parameter per channel.
        """
        for data, channels in ((a, b), (b, a)):
            if self.is_weight(data.tensor):
                self.declarations.append(Use(data, Role.PARAMETER, self.key, channels))
        self._connect(a, b, a_positions, b_positions)

    def _connect(self, a: Axis, b: Axis, a_positions: Places, b_positions: Places) -> None:
        self._mention(a)
        self._mention(b)
        if a in self._live:
            self._revive(b)
        width_a, width_b = self.width(a), self.width(b)
        if width_a is None or width_b is None:
            for axis in (a, b):  # an unknown width has no positions to follow
                if self.width(axis) is not None:
                    self.block(axis, "the other side has an unknown width; give it with --input-shapes")
            return
        a_index = np.arange(width_a) if a_positions is None else np.asarray(a_positions, np.int64)
        b_index = np.arange(width_b) if b_positions is None else np.asarray(b_positions, np.int64)
        if len(a_index) != len(b_index):
            raise CannotDeclareError(f"'{a.tensor}' has {len(a_index)} channels where '{b.tensor}' has {len(b_index)}")
        self.declarations.append(Link(a, b, a_index, b_index))

    def use(
        self, weight: Axis, role: Role, channels: Axis, entries: Places = None, channel_positions: Places = None
    ) -> None:
        """Declare that a weight axis holds entries of the positions of `channels`, one to one by default."""
        if role is Role.PRODUCER:
            self._revive(channels)
        self.declarations.append(Use(weight, role, self.key, channels))
        self._connect(weight, channels, entries, channel_positions)

    def block(self, axis: Axis, reason: str) -> None:
        """Declare that the axis must keep its width."""
        self._mention(axis)
        self.declarations.append(Block(axis, reason, self.key))

    def equal_blocks(self, axis: Axis, blocks: int, *, averaged: bool = False) -> None:
        """Declare that `blocks` parts of the axis must stay equally long, and whether mean and variance are theirs."""
        self.declarations.append(EqualBlocks(axis, blocks, self.key, averaged))

    def repeat(self, source: Axis, result: Axis, source_positions: Positions, result_positions: Positions) -> None:
        """Declare that channels of `source` stand for equally many neighbouring channels of `result` each."""
        self._mention(source)
        self._mention(result)
        if source in self._live:
            self._revive(result)
        blocks = len(np.unique(source_positions))
        self.declarations.append(Repeat(source, result, source_positions, result_positions, blocks, self.key))

    def keep_apart(self, axis: Axis) -> None:
        """Declare that the mean of different channels of an axis means nothing."""
        self.declarations.append(Apart(axis))

    def rotatable(self, axis: Axis) -> None:
        """Declare that the node computes the same in any orthonormal basis of an axis."""
        self.declarations.append(Rotatable(axis, self.key))

    def rotate_what_passes(self) -> None:
        """Declare all axes rotatable that the node carries over as a whole."""
        for d in [d for d in self.declarations if isinstance(d, Link)]:
            sides = ((d.a, d.a_positions), (d.b, d.b_positions))
            if all(np.array_equal(positions, np.arange(self.width(axis) or 0)) for axis, positions in sides):
                self.rotatable(d.a)
                self.rotatable(d.b)

    def norm(
        self, sources: Sequence[str], result: str, scale: str, *, shift: str = "", bias: str = "", centred: bool = False
    ) -> None:
        """Declare that the node norms a sum along its last axis; nothing where a factor is not constant."""
        axis, along = self.axis(result, -1), tuple(self.axis(name, -1) for name in dict.fromkeys(sources))
        width = self.width(axis)
        is_whole = bool(scale) and all(self.width(source) == width for source in along)
        constant = (self.is_weight(n) and self.shape(n) == (width,) for n in (scale, shift, bias) if n)
        if width is not None and is_whole and all(constant):
            along_shift, along_bias = (Axis(name, 0) if name else None for name in (shift, bias))
            self.declarations.append(
                Norm(along, axis, self.key, Axis(scale, 0), along_shift, along_bias, centred, width)
            )

    def count(
        self, axis: Axis, place: str | int, *, element: int | None = None, start: int = 0, stop: int | None = None,
        each: int = 1,
    ) -> None:  # fmt: skip
        """Declare that an attribute, or a constant input by number, holds how many `each` are in ``start:stop``."""
        width = self.width(axis)
        if width is not None:
            end = width if stop is None else stop
            self.declarations.append(Count(self.key, axis, start, end, place, element, each))

    def select(self, axis: Axis, source: Axis, input_index: int) -> None:
        """Declare that a constant input holds, for every position of `axis`, a position of `source`."""
        width = self.width(source)
        if width is not None:
            self.declarations.append(Select(self.key, axis, source, input_index, width))

    def carry(self, axes: Iterable[int], places: Iterable[int] | None = None) -> None:
        """Link axes of the first input to axes of the first result, to the same ones by default."""
        axes = list(axes)
        for axis, place in zip(axes, axes if places is None else places, strict=False):
            self.link(self.axis(self.input(0), axis), self.axis(self.output(), place))

    def hold(self, axis: Axis, role: Role, channels: Axis) -> None:
        """Declare an axis with one entry per channel: a weight's in a role, else the channels themselves."""
        if self.is_weight(axis.tensor):
            self.use(axis, role, channels)
        else:
            self.link(axis, channels)

    def link_all(self, a: str, b: str, *, but: Iterable[int] = ()) -> None:
        """Link every axis of two tensors of equal rank, except some."""
        rank = self.rank(a)
        if rank != self.rank(b):
            raise CannotDeclareError(f"'{a}' and '{b}' have different ranks")
        skipped = {axis % rank for axis in but}
        for axis in sorted({*range(rank)} - skipped):
            self.link(Axis(a, axis), Axis(b, axis))

    def link_broadcast(self, operand: str, result: str, role: Role) -> None:
        """Link the axes of an operand to those of a broadcast result, aligned at the right.

        Axes of size 1 stretch and stay as they are. A constant operand becomes a per-channel `role`.
        """
        shape, out = self.shape(operand), self.shape(result)
        for i in range(1, len(shape) + 1):
            a, b = Axis(operand, len(shape) - i), Axis(result, len(out) - i)
            if shape[-i] == 1:
                self._mention(a)
                if out[-i] == 1:
                    self._mention(b)
            else:
                self.hold(a, role, b)

    def ignore(self, tensor: str) -> None:
        """Declare that the node reads nothing of a tensor that depends on how wide its axes are."""
        for axis in range(len(self.view.shape(tensor) or ())):
            self._mention(Axis(tensor, axis))

    def refuse_rest(self, reason: str) -> None:
        """Block every axis of the node's tensors that no declaration mentioned."""
        tensors = dict.fromkeys([*read_names(self.node), *filter(None, self.outputs)])
        for place in ((tensor, axis) for tensor in tensors for axis in range(len(self.view.shape(tensor) or ()))):
            if place not in self._mentioned:
                self.declarations.append(Block(Axis(*place), reason, self.key))

    def rollback(self) -> None:
        """Take back everything that was declared about the node."""
        self.declarations.clear()
        self._mentioned.clear()
        self._live.difference_update(self._revived)
        self._revived.clear()

    def _revive(self, axis: Axis) -> None:
        """Note that an axis carries channels that a weight produced."""
        if axis not in self._live:
            self._live.add(axis)
            self._revived.append(axis)

    def _mention(self, axis: Axis) -> None:
        self._mentioned.add((axis.tensor, axis.axis))


RuleFunction = Callable[[NodeContext], None]
ComputesFunction = Callable[[NodeContext], Computation | None]


class Result(Enum):
    """Where a node's first result lies in memory."""

    NEW = "new"  #: in memory of its own
    IN_PLACE = "in place"  #: over an operand of its size that nobody else needs: elements are computed one by one
    VIEW = "view"  #: in its first input: the same bytes under another shape


@dataclass(frozen=True)
class ChannelRule:
    """A rule, the words for the axes it does not mention, and what the operator computes."""

    op_type: str
    since: int
    declare: RuleFunction
    mixes: str
    computes: ComputesFunction | None = None
    result: Result = Result.NEW
    carries: bool = False


_RULES = OperatorRegistry[ChannelRule]("a channel rule")
find_rule = _RULES.find


def channel_rule(
    *op_types: str, since: int = 1, domain: str = "", mixes: str = "it mixes the positions of this axis",
    computes: ComputesFunction | None = None, result: Result = Result.NEW, carries: bool = False,
) -> Callable[[RuleFunction], RuleFunction]:  # fmt: skip
    """Register a rule for operators.

    Parameters
    ----------
    *op_types : str
        ONNX operator names.
    since : int
        First version of the operator that the rule understands; it holds until a newer one is registered,
        as in :mod:`onnx.defs`.
    domain : str
        Operator domain.
    mixes : str
        Why axes that the rule does not mention must keep their width; shown to users.
    computes : callable, optional
        Returns what a node computes, a :data:`~onnxfold.channels.declarations.Computation`; reads attributes and
        constants only, and leaves out what these do not tell.
    result : Result
        Where the node's first result may lie in memory.
    carries : bool
        Whether the node moves and adds values only: along an axis that it carries over whole, any basis will do.

    Raises
    ------
    ValueError
        If the operator version already has a rule.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for op_type in op_types:
            rule = ChannelRule(op_type, since, function, mixes, computes, result, carries)
            _RULES.add(op_type, rule, since=since, domain=domain)
        return function

    return register


def all_rules() -> list[tuple[str, ChannelRule]]:
    """Return every rule with its domain, for documentation and contract tests."""
    return [(domain, rule) for domain, _, rule in _RULES]
