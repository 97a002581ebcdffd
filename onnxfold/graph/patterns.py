"""Patterns of nodes: expressions that are matched from their last node upwards, and numbers that a node picks."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import DEFAULT_DOMAINS
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView

_T = TypeVar("_T")
_COMMUTATIVE = frozenset({"Add", "Mul"})
_TOLERANCE = 1e-4  # of a number that was rounded to half precision


class Mismatch(Exception):  # noqa: N818  (nothing has failed)
    """Nodes are not what a rewrite asks for; the text says why."""

    depth = 0  # of the attempts that it ended


@dataclass(frozen=True)
class Op:
    """A node of ONNX, and patterns of its first inputs."""

    op_types: str  # its operator; of several, separated by ``|``, any
    #: Another node; a name, which stands for the same tensor everywhere; a constant of one number; several of these, of
    #: which any. Both orders of the inputs of Add and Mul are tried.
    inputs: tuple["Pattern", ...] = ()

    def fits(self, node: NodeProto) -> bool:
        """Whether a node has such an operator."""
        return node.domain in DEFAULT_DOMAINS and node.op_type in self.op_types.split("|")


Dims = list[int | str]
Pattern = Op | str | float | tuple["Pattern", ...]


@dataclass(frozen=True)
class Match:
    """Nodes that a pattern stands for, every node behind those that it reads, and tensors by their names in it."""

    nodes: tuple[NodeProto, ...] = ()
    tensors: Mapping[str, str] = field(default_factory=dict)


def chain(*op_types: str) -> Op:
    """Return the pattern of nodes of which each reads first what the one before it writes."""
    pattern = Op(op_types[0])
    for kind in op_types[1:]:
        pattern = Op(kind, (pattern,))
    return pattern


def scaled(pattern: Pattern, factor: float) -> tuple[Op, ...]:
    """Return the pattern of something times a number, which may be written as a quotient."""
    return Op("Mul", (pattern, factor)), Op("Div", (pattern, 1 / factor))


def dims(view: GraphView, tensor: str) -> Dims | None:
    """Return the numbers or symbols of dimensions, "" for those that have neither; None for an unknown rank."""
    shape = view.shape(tensor)
    if shape is None:
        return None
    symbols = view.symbols(tensor) or ("",) * len(shape)  # weights have none
    return [symbol if size is None else size for size, symbol in zip(shape, symbols, strict=True)]


def only_reader(view: GraphView, tensor: str) -> NodeProto | None:
    """Return the node that alone reads a tensor, None if others do or the graph gives it out."""
    readers = view.consumers(tensor)
    return readers[0] if len(readers) == 1 and tensor not in view.output_names else None


def behind(view: GraphView, tensor: str, op_types: Collection[str]) -> str:
    """Return the tensor that a tensor is made of by some operators alone, each by its first input."""
    while (node := view.producer(tensor)) is not None and node.op_type in op_types:
        tensor = node.input[0]
    return tensor


def multiplies_weight(view: GraphView, node: NodeProto) -> bool:
    """Whether a node multiplies an activation by a weight from the right, and does nothing else."""
    return node.op_type == "MatMul" and node.domain in DEFAULT_DOMAINS and view.is_weight(node.input[1])


def find_match(view: GraphView, node: NodeProto, pattern: Op, known: Match | None = None, *, shared: bool) -> Match:
    """Return the nodes of a pattern that ends at a node, behind those that are known.

    Others may read what lies in between only if that is `shared`. Raises :class:`Mismatch` if the nodes are others.
    """
    if not pattern.fits(node):
        raise Mismatch(f"{node.op_type} stands in the place of {pattern.op_types}")

    def match_inputs(inputs: Iterable[str]) -> Match:
        match = known or Match()
        for tensor, inner in zip(inputs, pattern.inputs, strict=False):
            match = _match_tensor(view, tensor, inner, match, shared)
        return replace(match, nodes=(*match.nodes, node))

    both = node.op_type in _COMMUTATIVE and len(pattern.inputs) > 1
    return _first(match_inputs, [node.input, node.input[::-1]] if both else [node.input])


def _match_tensor(view: GraphView, tensor: str, pattern: Pattern, known: Match, shared: bool) -> Match:
    if isinstance(pattern, tuple):
        return _first(lambda inner: _match_tensor(view, tensor, inner, known, shared), pattern)
    if isinstance(pattern, Op):
        node = view.producer(tensor)
        if node is None or node.output[0] != tensor:
            raise Mismatch(f"no {pattern.op_types} computes '{tensor}'")
        if not shared and only_reader(view, tensor) is None:
            raise Mismatch(f"others read '{tensor}', too")
        return find_match(view, node, pattern, known, shared=shared)
    if isinstance(pattern, str):
        if known.tensors.get(pattern, tensor) != tensor:
            raise Mismatch(f"'{tensor}' stands in the place of '{known.tensors[pattern]}'")
        return replace(known, tensors={**known.tensors, pattern: tensor})
    if not view.is_weight(tensor) or view.weight_size(tensor) != 1:
        raise Mismatch(f"'{tensor}' is no number")
    number = float(view.weight(tensor).reshape(-1)[0])
    if not math.isclose(number, pattern, rel_tol=_TOLERANCE):
        raise Mismatch(f"'{tensor}' is {number:.6g}, not {pattern:.6g}")
    return known


def _first(attempt: Callable[[_T], Match], choices: Iterable[_T]) -> Match:
    """Return the first match of some attempts, or raise why the one that came furthest is none."""
    reasons: list[Mismatch] = []
    for choice in choices:
        try:
            return attempt(choice)
        except Mismatch as mismatch:
            mismatch.depth += 1
            reasons.append(mismatch)
    raise max(reasons, key=lambda reason: reason.depth)


def picked_dimensions(view: GraphView, node: NodeProto, count: int) -> Array | None:
    """Return which of `count` numbers, its first input, a Gather or a Slice gives out."""
    if len(node.input) < 2 or not all(map(view.is_weight, node.input[1:])):
        return None
    first, *others = (view.weight(name) for name in node.input[1:])
    if node.op_type == "Gather":
        return np.asarray(first, np.int64) % count
    if node.op_type != "Slice" or not others or any(values.size != 1 for values in (first, *others)):
        return None
    start, stop, *axis_and_step = (int(values.item()) for values in (first, *others))
    return np.arange(count)[slice(start, stop, *axis_and_step[1:])]
