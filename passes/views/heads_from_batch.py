"""Take heads out of the axis that they share with the batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int, attr_ints, node_key, read_names, rewritten
from onnxfold.graph.patterns import Dims, Mismatch, dims
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: Operators of one operand, and of two, that treat every number by itself.
_ALONE = frozenset({"Cast", "Identity", "Neg"})
_IN_PAIRS = frozenset({"Add", "Div", "Mul", "Sub"})
_TURNED = (2, 1, 0)  # by a Transpose without a permutation


class HeadsFromBatch(Pass):
    """Let products over batch and heads keep both axes: on one axis of unknown size, nothing says which head is which.

    Case 1: (B, N, S, H) -> (B*N, S, H), products and a softmax, -> (B, N, S, H), as BART, OPT, CLIP and Whisper were
    written for years, goes without the views. Case 2: (S, B, N*H) -> (S, B*N, H) -> (B*N, S, H), products and a
    softmax, -> (S, B*N, H) -> (S*B, N*H), as torch's MultiheadAttention that gives its weights, goes through (S, B, N,
    H). Where anything else reads a tensor between such views, all of them stay.
    """

    def run(self, view: GraphView) -> PassResult:
        """Drop views in pairs, and give what lies between them another axis."""
        kept: dict[str, str] = {}
        while staying := (moved := _Moved(view, kept)).follow():
            kept |= staying  # at least one more
        for key, node in moved.made.items():
            target = moved.targets.get(node.output[0])
            if target is not None:
                shape = view.add_weight(f"{node.output[0]}_shape", np.array(target, np.int64))
                moved.made[key] = rewritten(node, inputs=[node.input[0], shape])
        view.rename_inputs(moved.renamed)
        return PassResult(view.substitute(moved.made, moved.dropped), reasons=kept)


@dataclass(frozen=True)
class _Apart:
    """A tensor with axes for batch and heads in place of one with both on axis `place`.

    `views` are the views that it comes from.
    """

    name: str
    heads: int
    views: frozenset[str]
    place: int = 0


class _Moved:
    """The changes of a graph where some of the views that put batch and heads on one axis are dropped."""

    def __init__(self, view: GraphView, kept: Mapping[str, str]) -> None:
        self.view, self.kept = view, kept
        self.apart: dict[str, _Apart] = {}
        self.renamed: dict[str, str] = {}
        self.made: dict[str, NodeProto] = {}
        self.dropped: set[str] = set()
        #: Target shapes of new views by their results; they become weights at the end.
        self.targets: dict[str, list[int]] = {}

    def follow(self) -> dict[str, str]:
        """Go through the graph; return the views that must stay if something stands in the way, and what.

        Views whose results are read by no product stay, too.
        """
        for node in self.view.nodes:
            read = [self.apart[name] for name in read_names(node) if name in self.apart]
            try:
                if read:
                    self._move(node)
                elif node.op_type == "Reshape" and node_key(node) not in self.kept:
                    self._join(node)
            except Mismatch as reason:
                why = f"{node.op_type} '{node_key(node)}' reads it: {reason}"
                return dict.fromkeys((view for tensor in read for view in tensor.views), why)
        for name, tensor in self.apart.items():
            if name in self.view.output_names:
                return dict.fromkeys(tensor.views, f"'{name}' is an output")
        return {}

    def _join(self, node: NodeProto) -> None:
        """Take apart what a Reshape puts on one axis with the batch, if it does."""
        before, after = dims(self.view, node.input[0]) or [], dims(self.view, node.output[0]) or []
        result, views = node.output[0], frozenset([node_key(node)])
        source = self.renamed.get(node.input[0], node.input[0])
        if len(after) != 3 or len(before) not in (3, 4):
            return
        heads, width, size = before[1], before[-1], after[-1]
        if len(before) == 4 and _are_equal(before[2:], after[1:]) and isinstance(heads, int) and heads > 1:
            self.apart[result] = _Apart(source, heads, views)
            self.dropped.add(node_key(node))
        if len(before) == 4 or not isinstance(width, int) or not isinstance(size, int):
            return
        if _are_equal(before[:1], after[:1]) and width % size == 0 and width > size:
            name = self.view.fresh_name(f"{result}_apart")
            self.apart[result] = _Apart(name, width // size, views, place=1)
            outer = [d if isinstance(d, int) else 0 for d in before[:2]]  # 0 copies
            self.targets[name] = [*outer, width // size, size]
            inputs = [source, f"{name}_shape"]
            self.made[node_key(node)] = rewritten(node, inputs=inputs, outputs=[name], without=["allowzero"])

    def _move(self, node: NodeProto) -> None:
        """Follow a node that reads such tensors."""
        first = self.apart.get(node.input[0])
        if node.op_type == "Reshape" and first is not None:
            self._follow_back(node, first)
            return
        tensors = [self.apart.get(name) for name in node.input]
        present = [tensor for tensor in tensors if tensor is not None]
        if len({(tensor.heads, tensor.place) for tensor in present}) != 1 or len(node.output) > 1:
            raise Mismatch("other heads stand beside it")
        heads, place = present[0].heads, present[0].place
        attributes = _attributes(self.view, node, len(present), place)
        inputs = [old if tensor is None else tensor.name for old, tensor in zip(node.input, tensors, strict=True)]
        result = self.view.fresh_name(f"{node.output[0]}_apart")
        views = frozenset[str]().union(*(tensor.views for tensor in present))
        place = attr_ints(node, "perm", _TURNED).index(place) if node.op_type == "Transpose" else place
        self.apart[node.output[0]] = _Apart(result, heads, views, place)
        self.made[node_key(node)] = rewritten(node, inputs=inputs, outputs=[result], attributes=attributes)

    def _follow_back(self, node: NodeProto, source: _Apart) -> None:
        """Follow a Reshape that takes batch and heads apart again, puts heads behind each other, or changes nothing."""
        before, after = dims(self.view, node.input[0]), dims(self.view, node.output[0])
        if before is None or after is None:
            raise Mismatch("its shape is unknown")
        result, target = node.output[0], node.input[1]
        if source.place:  # the heads of (S, B*N, H); the target may copy nothing
            copies = not self.view.is_weight(target) or (self.view.weight(target) == 0).any()
            if copies or not isinstance(before[2], int) or after[-1] != source.heads * before[2]:
                raise Mismatch("it does not put heads behind each other")
            self.made[node_key(node)] = rewritten(node, inputs=[source.name, target])
            return
        if len(after) == 3 and _are_equal(after[1:], before[1:]) and result not in self.view.output_names:
            self.apart[result] = source
        elif _are_equal(after[1:], [source.heads, *before[1:]]) and result not in self.view.output_names:
            self.renamed[result] = source.name
        else:
            raise Mismatch("it does not take batch and heads apart again")
        self.dropped.add(node_key(node))


def _are_equal(some: Dims, others: Dims) -> bool:
    """Whether dimensions are known to be equal."""
    return some == others and "" not in some


def _attributes(view: GraphView, node: NodeProto, moved: int, place: int) -> dict[str, object]:
    """Return the attributes that differ with two axes in place of axis `place`."""
    if node.domain not in DEFAULT_DOMAINS:
        raise Mismatch("no operator of ONNX")
    if node.op_type in _ALONE or (node.op_type == "MatMul" and moved == 2 and not place):
        return {}
    if node.op_type in _IN_PAIRS:
        others = [view.weights[name] for name in node.input if view.is_weight(name)]
        scalar = all(prod(weight.shape) == 1 and len(weight.shape) < 4 for weight in others)
        if scalar and moved + len(others) == 2:
            return {}
    if node.op_type == "Softmax" and attr_int(node, "axis", -1 if view.opset() >= 13 else 1) in (-1, 2):
        return {"axis": 3}
    if node.op_type == "Transpose":
        pairs = ((old, old + 1) if old == place else (old + (old > place),) for old in attr_ints(node, "perm", _TURNED))
        return {"perm": [axis for pair in pairs for axis in pair]}
    raise Mismatch("it mixes batch and heads")
