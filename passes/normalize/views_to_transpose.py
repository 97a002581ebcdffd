"""Replace Reshape-Transpose-Reshape by the Transpose that it amounts to."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_ints
from onnxfold.graph.patterns import chain
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: Sizes that stand for dimensions that are not known as numbers, in two trials.
_STAND_INS = ((3, 5, 7, 11, 13, 17), (5, 3, 13, 7, 19, 11))
_MOST_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class ViewsToTranspose(Pass):
    """Replace three nodes by one that exchanges axes.

    Case 1: (B, N, S, H) -> (B*N, S, H) -> swap -> (B, N, H, S), as the dynamo exporter transposes keys. Batch and heads
    on one axis, of a size that is not known, hide which of its positions are which head.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match whose inner results nobody else reads."""
        replaced: dict[str, NodeProto] = {}
        dropped: set[str] = set()
        for first in view.nodes:
            match = chain(view, first, "Reshape", "Transpose", "Reshape")
            if match is None or first.output[0] in dropped:
                continue
            perms = [_permutation(view, match, sizes) for sizes in _STAND_INS]
            if perms[0] is None or perms[0] != perms[1]:
                continue
            last = match[-1].output[0]
            name = match[-1].name or last
            replaced[last] = helper.make_node("Transpose", [first.input[0]], [last], name, perm=perms[0])
            dropped.update(node.output[0] for node in match[:-1])
        return PassResult(view.substitute(replaced, dropped))


def _permutation(view: GraphView, match: list[NodeProto], sizes: tuple[int, ...]) -> list[int] | None:
    """Return the order of axes that three nodes amount to, None if it is something else."""
    known: dict[str, int] = {}
    start, end = (_concrete(view, tensor, known, sizes) for tensor in (match[0].input[0], match[2].output[0]))
    if start is None or end is None or len(start) != len(end) or prod(start) > _MOST_ELEMENTS:
        return None
    inner = _inner(view, match[0].output[0], known, prod(start))
    if inner is None or prod(end) != prod(start):
        return None
    grid = np.arange(prod(start)).reshape(start)
    order = attr_ints(match[1], "perm", reversed(range(len(inner))))
    result = grid.reshape(inner).transpose(order).reshape(end)
    for perm in permutations(range(len(start))):
        if tuple(start[axis] for axis in perm) == tuple(end) and np.array_equal(grid.transpose(perm), result):
            return list(perm)
    return None


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
