"""Replace the repetition of heads by a Gather."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.patterns import chain
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

Dims = list[int | str]


@dataclass(frozen=True)
class RepeatsToGather(Pass):
    """Replace Unsqueeze-Expand-Reshape by a Gather where it repeats every position of an axis.

    Case 1: (B, N, S, H) -> (B, N, 1, S, H) -> (B, N, G, S, H) -> (B, N*G, S, H), by which exporters give every query
    head its keys and values. Which heads stay is then a list, whatever computes the target shapes.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match whose inner results nobody else reads."""
        replaced: dict[str, NodeProto] = {}
        dropped: set[str] = set()
        for first in view.nodes:
            match = chain(view, first, "Unsqueeze", "Expand", "Reshape")
            repetition = None if match is None else _repetition(view, match)
            if match is None or repetition is None:
                continue
            axis, count, times = repetition
            last = match[-1].output[0]
            indices = view.add_weight(f"{last}_repeated", np.repeat(np.arange(count), times))
            name = match[-1].name or last
            replaced[last] = helper.make_node("Gather", [first.input[0], indices], [last], name, axis=axis)
            dropped.update(node.output[0] for node in match[:-1])
        return PassResult(view.substitute(replaced, dropped))


def _repetition(view: GraphView, match: list[NodeProto]) -> tuple[int, int, int] | None:
    """Return the axis that is repeated, its length, and how often; None if it is something else."""
    start, inner, wide, end = (
        _dims(view, tensor)
        for tensor in (match[0].input[0], match[0].output[0], match[1].output[0], match[2].output[0])
    )
    if start is None or inner is None or wide is None or end is None or len(end) != len(start):
        return None
    for axis, count in enumerate(start):
        times = wide[axis + 1] if len(wide) == len(start) + 1 else None
        if not isinstance(count, int) or not isinstance(times, int) or times < 2:
            continue
        before, behind = start[: axis + 1], start[axis + 1 :]
        if (
            inner == [*before, 1, *behind]
            and wide == [*before, times, *behind]
            and end == [*start[:axis], count * times, *behind]
        ):
            return axis, count, times
    return None


def _dims(view: GraphView, tensor: str) -> Dims | None:
    """Return the numbers or symbols of a tensor's dimensions; None where one has neither."""
    shape = view.shape(tensor)
    if shape is None:
        return None
    dims = [symbol if size is None else size for size, symbol in zip(shape, view.symbols(tensor), strict=True)]
    return None if "" in dims else dims
