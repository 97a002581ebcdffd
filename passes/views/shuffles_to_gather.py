"""Replace channel shuffles by a Gather that permutes one axis."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_ints
from onnxfold.graph.patterns import chain
from onnxfold.graph.shapes.tensor_types import Shape
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: Size that stands for every unknown dimension.
_STAND_IN = 3


@dataclass(frozen=True)
class ShufflesToGather(Pass):
    """Replace Reshape-Transpose-Reshape by a Gather where it permutes the entries of a single axis.

    Case 1: (N, C, H, W) -> (N, g, C/g, H, W) -> swap -> (N, C, H, W), ShuffleNet's shuffle, in any rank.
    A permutation survives a fold, in which channels of one cluster need not lie in a g x C/g grid any
    more; the Reshapes would not.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match whose inner results nobody else reads."""
        replaced: dict[str, NodeProto] = {}
        dropped: set[str] = set()
        for first in view.nodes:
            match = chain(view, first, "Reshape", "Transpose", "Reshape")
            if match is None or first.output[0] in dropped:
                continue
            shuffle = _permutation(view, match)
            if shuffle is None:
                continue
            axis, permutation = shuffle
            last = match[-1].output[0]
            indices = view.add_weight(f"{last}_permutation", permutation)
            name = match[-1].name or last
            replaced[last] = helper.make_node("Gather", [first.input[0], indices], [last], name, axis=axis)
            dropped.update(node.output[0] for node in match[:-1])
        return PassResult(view.substitute(replaced, dropped))


def _permutation(view: GraphView, match: list[NodeProto]) -> tuple[int, Array] | None:
    """Return the axis and the permutation that three nodes amount to, None if it is something else."""
    shapes = [view.shape(t) for t in (match[0].input[0], match[0].output[0], match[2].output[0])]
    if any(s is None for s in shapes):
        return None
    start, inner, end = (_concrete(s or ()) for s in shapes)
    if start != end or int(np.prod(start)) != int(np.prod(inner)):
        return None
    changed = [i for i, (a, b) in enumerate(zip(start, inner, strict=False)) if a != b]
    if not changed or len(inner) <= len(start):
        return None
    axis = changed[0]
    perm = attr_ints(match[1], "perm", reversed(range(len(inner))))
    # One element per position of the axis suffices if the rest passes through unchanged; check that it does.
    grid = np.arange(int(np.prod(start))).reshape(start)
    result = grid.reshape(inner).transpose(perm).reshape(end)
    permutation = np.moveaxis(result, axis, 0).reshape(start[axis], -1)[:, 0] // int(np.prod(start[axis + 1 :]))
    if sorted(permutation.tolist()) != list(range(start[axis])):
        return None
    return (axis, permutation.astype(np.int64)) if np.array_equal(np.take(grid, permutation, axis), result) else None


def _concrete(shape: Shape) -> tuple[int, ...]:
    return tuple(_STAND_IN if d is None else d for d in shape)
