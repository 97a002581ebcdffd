"""Take heads out of the axis that they share with the batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, attr_ints, captured_names, node_key, rewritten
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: Operators of one operand, and of two, that treat every number by itself.
_ALONE = frozenset({"Cast", "Identity", "Neg"})
_IN_PAIRS = frozenset({"Add", "Div", "Mul", "Sub"})


@dataclass(frozen=True)
class HeadsFromBatch(Pass):
    """Let products over batch and heads keep both axes.

    Case 1: (B, N, S, H) -> (B*N, S, H), products and a softmax, -> (B, N, S, H), as BART, OPT, CLIP and Whisper were
    written for years, goes without the views. Case 2: (S, B, N*H) -> (S, B*N, H) -> (B*N, S, H), products and a
    softmax, -> (S, B*N, H) -> (S*B, N*H), as torch's MultiheadAttention that gives its weights, goes through
    (S, B, N, H). Batch and heads on one axis, of a size that is not known, hide which of its positions are which head.
    Where anything else reads a tensor between such views, all of them stay.
    """

    def run(self, view: GraphView) -> PassResult:
        """Drop views in pairs, and give what lies between them another axis."""
        kept: set[str] = set()
        while True:
            moved = _Moved(view, kept)
            failed = moved.follow()
            if failed is None:
                break
            kept |= failed  # at least one more
        if not moved.made:
            return PassResult(modified=False)
        names = {name: view.add_weight(f"{name}_shape", np.array(t, np.int64)) for name, t in moved.targets.items()}
        for key, node in moved.made.items():
            if node.output[0] in names:
                moved.made[key] = rewritten(node, inputs=[node.input[0], names[node.output[0]]])
        view.rename_inputs(moved.renamed)
        return PassResult(view.substitute(moved.made, moved.dropped))


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

    def __init__(self, view: GraphView, kept: set[str]) -> None:
        self.view, self.kept = view, kept
        self.apart: dict[str, _Apart] = {}
        self.renamed: dict[str, str] = {}
        self.made: dict[str, NodeProto] = {}
        self.dropped: set[str] = set()
        #: Target shapes of new views by their results; they become weights at the end.
        self.targets: dict[str, list[int]] = {}

    def follow(self) -> frozenset[str] | None:
        """Go through the graph; return the views that must stay if something stands in the way, None if nothing does.

        Views whose results are read by no product stay, too.
        """
        for node in self.view.nodes:
            read = [self.apart[name] for name in (*node.input, *captured_names(node)) if name in self.apart]
            if read:
                if not self._moves(node):
                    return frozenset[str]().union(*(tensor.views for tensor in read))
            elif node.op_type == "Reshape" and node_key(node) not in self.kept:
                self._join(node)
        outside = (tensor.views for name, tensor in self.apart.items() if name in self.view.output_names)
        return next(outside, None)

    def _join(self, node: NodeProto) -> None:
        """Take apart what a Reshape puts on one axis with the batch, if it does."""
        before, after = _dims(self.view, node.input[0]), _dims(self.view, node.output[0])
        if before is None or after is None or len(after) != 3:
            return
        result, views = node.output[0], frozenset([node_key(node)])
        source = self.renamed.get(node.input[0], node.input[0])
        if len(before) == 4 and _are_equal(before[2:], after[1:]) and isinstance(before[1], int) and before[1] > 1:
            self.apart[result] = _Apart(source, before[1], views)
            self.dropped.add(node_key(node))
            return
        width, size = before[-1], after[-1]
        if len(before) != 3 or not _are_equal(before[:1], after[:1]):
            return
        if not isinstance(width, int) or not isinstance(size, int):
            return
        if width % size == 0 and width > size:
            name = self.view.fresh_name(f"{result}_apart")
            self.apart[result] = _Apart(name, width // size, views, place=1)
            outer = [d if isinstance(d, int) else 0 for d in before[:2]]  # 0 copies
            self.targets[name] = [*outer, width // size, size]
            self.made[node_key(node)] = rewritten(
                node, inputs=[source, f"{name}_shape"], outputs=[name], without=["allowzero"]
            )

    def _moves(self, node: NodeProto) -> bool:
        """Follow a node that reads such tensors; return whether that goes."""
        first = self.apart.get(node.input[0])
        if node.op_type == "Reshape" and first is not None:
            return self._follow_back(node, first)
        tensors = [self.apart.get(name) for name in node.input]
        present = [tensor for tensor in tensors if tensor is not None]
        if len({(tensor.heads, tensor.place) for tensor in present}) > 1 or len(node.output) > 1:
            return False
        attributes = _attributes(self.view, node, len(present), present[0].place)
        if attributes is None:
            return False
        inputs = [old if tensor is None else tensor.name for old, tensor in zip(node.input, tensors, strict=True)]
        result = self.view.fresh_name(f"{node.output[0]}_apart")
        views = frozenset[str]().union(*(tensor.views for tensor in present))
        place = _order(node).index(present[0].place) if node.op_type == "Transpose" else present[0].place
        self.apart[node.output[0]] = _Apart(result, present[0].heads, views, place)
        self.made[node_key(node)] = rewritten(node, inputs=inputs, outputs=[result], attributes=attributes)
        return True

    def _follow_back(self, node: NodeProto, source: _Apart) -> bool:
        """Follow a Reshape that takes batch and heads apart again, or changes nothing."""
        before, after = _dims(self.view, node.input[0]), _dims(self.view, node.output[0])
        if before is None or after is None:
            return False
        if source.place:
            return self._follow_flat(node, source, before, after)
        if node.output[0] in self.view.output_names:
            return False
        if len(after) == 3 and _are_equal(after[1:], before[1:]):
            self.apart[node.output[0]] = source
        elif len(after) == 4 and _are_equal(after[1:], [source.heads, *before[1:]]):
            self.renamed[node.output[0]] = source.name
        else:
            return False
        self.dropped.add(node_key(node))
        return True

    def _follow_flat(self, node: NodeProto, source: _Apart, before: list[int | str], after: list[int | str]) -> bool:
        """Follow a Reshape that puts the heads of (S, B*N, H) behind each other; its target may copy nothing."""
        copies = not self.view.is_weight(node.input[1]) or (self.view.weight(node.input[1]) == 0).any()
        if copies or not isinstance(before[2], int) or after[-1] != source.heads * before[2]:
            return False
        self.made[node_key(node)] = rewritten(node, inputs=[source.name, node.input[1]])
        return True


def _dims(view: GraphView, tensor: str) -> list[int | str] | None:
    """Return the numbers or symbols of dimensions, "" for those that have neither; None for an unknown rank."""
    shape = view.shape(tensor)
    if shape is None:
        return None
    symbols = view.symbols(tensor) or ("",) * len(shape)  # weights have none
    return [symbol if size is None else size for size, symbol in zip(shape, symbols, strict=True)]


def _are_equal(some: list[int | str], others: list[int | str]) -> bool:
    """Whether dimensions are known to be equal."""
    return some == others and "" not in some


def _order(node: NodeProto) -> list[int]:
    """Return the permutation of a Transpose of three axes."""
    return attr_ints(node, "perm", (2, 1, 0))


def _attributes(view: GraphView, node: NodeProto, moved: int, place: int) -> Mapping[str, object] | None:
    """Return the attributes that differ with two axes in place of axis `place`, None where a node cannot have them."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _ALONE or (node.op_type == "MatMul" and moved == 2 and not place):
        return {}
    if node.op_type in _IN_PAIRS:
        others = [name for name in node.input if view.is_weight(name)]
        scalar = all(view.weights[name].size == 1 and len(view.weights[name].shape) < 4 for name in others)
        return {} if scalar and moved + len(others) == 2 else None
    if node.op_type == "Softmax":
        usual = -1 if view.opset() >= 13 else 1
        return {"axis": 3} if attr_int(node, "axis", usual) in (-1, 2) else None
    if node.op_type == "Transpose":
        pairs = ((old, old + 1) if old == place else (old + (old > place),) for old in _order(node))
        return {"perm": [axis for pair in pairs for axis in pair]}
    return None
