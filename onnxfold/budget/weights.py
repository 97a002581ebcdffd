"""The cost model of weights: how many parameters a choice of widths leaves, without folding anything."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto

from onnxfold.channels.group import FoldGroup
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView, captured_names, subgraphs


@dataclass(frozen=True)
class _Tensor:
    """Dimensions as (fixed size, ((group, positions per unit), ...), divisor)."""

    dims: tuple[tuple[int, tuple[tuple[int, int], ...], int], ...]

    def size(self, widths: Sequence[int]) -> int:
        total = 1
        for fixed, parts, divisor in self.dims:
            total *= (fixed + sum(widths[g] * r for g, r in parts)) // divisor
        return total


class WeightCost:
    """Parameters as a function of the groups' widths.

    Parameters
    ----------
    graphs : sequence of (GraphView, sequence of FoldGroup)
        Normalised graphs with the groups whose widths vary; widths are given for all groups in this order.
    """

    def __init__(self, graphs: Sequence[tuple[GraphView, Sequence[FoldGroup]]]) -> None:
        self._fixed = 0
        self._tensors: list[_Tensor] = []
        first = 0
        for view, groups in graphs:
            self._add(view, groups, first)
            first += len(groups)

    def _add(self, view: GraphView, groups: Sequence[FoldGroup], first: int) -> None:
        parts: dict[tuple[str, int], list[tuple[int, int]]] = {}
        blocks: dict[tuple[str, int], int] = {}
        for g, group in enumerate(groups, start=first):
            for member in group.members:
                key = (member.axis.tensor, member.axis.axis)
                parts.setdefault(key, []).append((g, member.positions.shape[1]))
                blocks[key] = member.axis.blocks
        touched = {tensor for tensor, _ in parts}
        self._fixed += sum(view.weight_size(n) for n in view.float_weight_names() if n not in touched)
        for tensor in touched.intersection(view.float_weight_names()):
            dims = []
            for axis, size in enumerate(view.weights[tensor].shape):
                found = tuple(parts.get((tensor, axis), ()))
                divisor = blocks.get((tensor, axis), 1)
                covered = sum(groups[g - first].size * r for g, r in found)
                dims.append((size * divisor - covered, found, divisor))
            self._tensors.append(_Tensor(tuple(dims)))

    def __call__(self, widths: Sequence[int]) -> int:
        """Return the number of float weights left."""
        return self._fixed + sum(tensor.size(widths) for tensor in self._tensors)


def count_parameters(view: GraphView) -> int:
    """Return the number of float weights a model really uses.

    Float initializers and Constant nodes that an output depends on, those of subgraphs included, each
    counted once.
    """
    needed, total = set(view.output_names), 0
    for node in reversed(view.nodes):
        if not any(o in needed for o in node.output):
            continue
        needed.update(filter(None, [*node.input, *captured_names(node)]))
        total += _constant_size(node)
        total += sum(_graph_parameters(body) for body in subgraphs(node))
    for function in view.model.functions:
        total += sum(_constant_size(node) for node in function.node)
    return total + sum(view.weight_size(n) for n in view.float_weight_names() if n in needed)


def _graph_parameters(graph: GraphProto) -> int:
    total = sum(int(np.prod(t.dims, dtype=np.int64)) for t in graph.initializer if is_float(t.data_type))
    for node in graph.node:
        total += _constant_size(node) + sum(_graph_parameters(body) for body in subgraphs(node))
    return total


def _constant_size(node: object) -> int:
    if node.op_type != "Constant":  # type: ignore[attr-defined]
        return 0
    for attr in node.attribute:  # type: ignore[attr-defined]
        if attr.name == "value" and is_float(attr.t.data_type):
            return int(np.prod(attr.t.dims, dtype=np.int64))
        if attr.name in ("value_float", "value_floats"):
            return max(1, len(attr.floats))
    return 0
