"""Replace a Transpose between two views by the Transpose that the three amount to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, permutations
from math import prod
from operator import mul

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_ints, node_key
from onnxfold.graph.patterns import chain
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")
#: Sizes that stand for dimensions that are not known as numbers, in two trials.
_STAND_INS = ((3, 5, 7, 11, 13, 17), (5, 3, 13, 7, 19, 11))
_MOST_ELEMENTS = 1 << 20
_MOST_AXES = 5


@dataclass(frozen=True)
class ViewsToTranspose(Pass):
    """Let no view hide which axis is which.

    Case 1: (B, N, S, H) -> (B*N, S, H) -> swap -> (B, N, H, S), as the dynamo exporter transposes keys, is a Transpose;
    so is Unsqueeze, Transpose, Squeeze. Batch and heads on one axis, of a size that is not known, hide which of its
    positions are which head. Case 2: (S, B, N*H) -> (S, B*N, H) -> swap -> (B, N, S, H), torch's MultiheadAttention, is
    a Reshape that gives heads an axis, and a Transpose.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match whose inner results nobody else reads."""
        replaced: dict[str, NodeProto] = {}
        dropped: set[str] = set()
        for first in view.nodes:
            match = _match(view, first)
            if match is None or first.output[0] in dropped:
                continue
            orders = [_order(view, match, sizes) for sizes in _STAND_INS]
            order = orders[0]
            if order is None or order != orders[1]:
                continue
            source, last = first.input[0], match[-1].output[0]
            target = _target(view, source, last, order)
            if target is None:
                continue
            dropped.add(node_key(first))
            if target:
                shape = view.add_weight(f"{last}_apart_shape", np.array(target, np.int64))
                apart = view.fresh_name(f"{last}_apart")
                replaced[node_key(match[1])] = helper.make_node("Reshape", [source, shape], [apart], apart)
                source = apart
            else:
                dropped.add(node_key(match[1]))
            perm = np.argsort(order).tolist()
            replaced[last] = helper.make_node("Transpose", [source], [last], match[-1].name or last, perm=perm)
        return PassResult(view.substitute(replaced, dropped))


def _match(view: GraphView, first: NodeProto) -> list[NodeProto] | None:
    """Return a view, a Transpose and a view behind each other."""
    if first.op_type not in _VIEWS:
        return None
    chains = (chain(view, first, first.op_type, "Transpose", last) for last in _VIEWS)
    return next((match for match in chains if match is not None), None)


def _order(view: GraphView, match: list[NodeProto], sizes: tuple[int, ...]) -> list[int] | None:
    """Return the axes of the result in the order in which they lie in what the three nodes read, None if in none."""
    known: dict[str, int] = {}
    start, end = (_concrete(view, tensor, known, sizes) for tensor in (match[0].input[0], match[2].output[0]))
    if start is None or end is None or not len(start) <= len(end) <= _MOST_AXES or prod(start) > _MOST_ELEMENTS:
        return None
    inner = _inner(view, match[0].output[0], known, prod(start))
    if inner is None or prod(end) != prod(start):
        return None
    grid = np.arange(prod(start))
    turn = attr_ints(match[1], "perm", reversed(range(len(inner))))
    result = grid.reshape(inner).transpose(turn).reshape(end)
    for order in permutations(range(len(end))):
        apart = [end[axis] for axis in order]
        if set(_ends(start)) <= set(_ends(apart)) and np.array_equal(
            grid.reshape(apart).transpose(np.argsort(order)), result
        ):
            return list(order)
    return None


def _ends(dims: Iterable[int]) -> list[int]:
    """Return the products of the first dimensions."""
    return list(accumulate(dims, mul))


def _target(view: GraphView, source: str, result: str, order: list[int]) -> list[int] | None:
    """Return the target shape that takes axes apart, an empty one where none is; None where it cannot be written."""
    start, end = view.shape(source) or (), view.shape(result) or ()
    if len(start) == len(end):
        return []
    symbols = view.symbols(source), view.symbols(result)
    target = []
    for place, axis in enumerate(order):
        size = end[axis]
        if size is None:
            same = place < len(start) and start[place] is None and symbols[0][place] == symbols[1][axis] != ""
            size = 0 if same else -1
        target.append(size)
    return target if target.count(-1) <= 1 else None


def _concrete(view: GraphView, tensor: str, known: dict[str, int], sizes: tuple[int, ...]) -> list[int] | None:
    """Return dimensions with a number for every symbol; None where one has no symbol."""
    shape, symbols = view.shape(tensor), view.symbols(tensor)
    if shape is None or not len(shape) <= len(sizes):
        return None
    dims = []
    for size, symbol in zip(shape, symbols, strict=True):
        if size is None and symbol:
            size = known.setdefault(symbol, sizes[len(known) % len(sizes)])
        if size is None:
            return None
        dims.append(size)
    return dims


def _inner(view: GraphView, tensor: str, known: Mapping[str, int], total: int) -> list[int] | None:
    """Return dimensions between the two reshapes, of which one may follow from the others."""
    shape = view.shape(tensor)
    if shape is None:
        return None
    pairs = zip(shape, view.symbols(tensor), strict=True)
    dims = [known.get(symbol) if size is None else size for size, symbol in pairs]
    rest = prod(d for d in dims if d is not None)
    if dims.count(None) > 1 or not rest or total % rest:
        return None
    return [total // rest if d is None else d for d in dims]
