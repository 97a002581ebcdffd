"""Take heads out of the axis that they share with the batch."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    written for years, goes without the views. Batch and heads on one axis, of a size that is not known, hide which of
    its positions are which head. Where anything else reads a tensor between them, all of these views stay.
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
        view.rename_inputs(moved.renamed)
        return PassResult(view.substitute(moved.made, moved.dropped))


@dataclass(frozen=True)
class _Apart:
    """A tensor with axes for batch and heads in place of one with both on an axis, and the views that it comes from."""

    name: str
    heads: int
    views: frozenset[str]


class _Moved:
    """What changes where some of the views that put batch and heads on one axis are dropped."""

    def __init__(self, view: GraphView, kept: set[str]) -> None:
        self.view, self.kept = view, kept
        self.apart: dict[str, _Apart] = {}
        self.renamed: dict[str, str] = {}
        self.made: dict[str, NodeProto] = {}
        self.dropped: set[str] = set()

    def follow(self) -> frozenset[str] | None:
        """Go through the graph; return the views that must stay if something stands in the way, None if nothing does.

        Views whose results are read by no product stay, too.
        """
        for node in self.view.nodes:
            read = [self.apart[name] for name in (*node.input, *captured_names(node)) if name in self.apart]
            if read:
                if not self._moves(node):
                    return frozenset[str]().union(*(one.views for one in read))
            elif node_key(node) not in self.kept and (heads := _joins(self.view, node)):
                source = self.renamed.get(node.input[0], node.input[0])
                self.apart[node.output[0]] = _Apart(source, heads, frozenset([node_key(node)]))
                self.dropped.add(node_key(node))
        outside = (one.views for name, one in self.apart.items() if name in self.view.output_names)
        return next(outside, None)

    def _moves(self, node: NodeProto) -> bool:
        """Follow a node that reads such tensors; return whether that goes."""
        first = self.apart.get(node.input[0])
        if node.op_type == "Reshape" and first is not None:
            return self._back(node, first)
        found = [self.apart.get(name) for name in node.input]
        ones = [one for one in found if one is not None]
        attributes = _attributes(self.view, node, len(ones))
        if attributes is None or len({one.heads for one in ones}) > 1 or len(node.output) > 1:
            return False
        inputs = [old if one is None else one.name for old, one in zip(node.input, found, strict=True)]
        result = self.view.fresh_name(f"{node.output[0]}_apart")
        self.apart[node.output[0]] = _Apart(result, ones[0].heads, frozenset[str]().union(*(one.views for one in ones)))
        self.made[node_key(node)] = rewritten(node, inputs=inputs, outputs=[result], attributes=attributes)
        return True

    def _back(self, node: NodeProto, source: _Apart) -> bool:
        """Follow a Reshape that takes batch and heads apart again, or changes nothing."""
        before, after = _dims(self.view, node.input[0]), _dims(self.view, node.output[0])
        if before is None or after is None or node.output[0] in self.view.output_names:
            return False
        if len(after) == 3 and after[1:] == before[1:]:
            self.apart[node.output[0]] = source
        elif len(after) == 4 and after[1:] == [source.heads, *before[1:]]:
            self.renamed[node.output[0]] = source.name
        else:
            return False
        self.dropped.add(node_key(node))
        return True


def _joins(view: GraphView, node: NodeProto) -> int:
    """Return the number of heads that a Reshape puts on one axis with the batch, 0 if it does something else."""
    if node.op_type != "Reshape" or node.output[0] in view.output_names:
        return 0
    before, after = _dims(view, node.input[0]), _dims(view, node.output[0])
    if before is None or after is None or len(before) != 4 or len(after) != 3 or before[2:] != after[1:]:
        return 0
    return before[1] if isinstance(before[1], int) and before[1] > 1 and before[0] != 1 else 0


def _dims(view: GraphView, tensor: str) -> list[int | str] | None:
    """Return the numbers or symbols of dimensions; None where one but the first has neither."""
    shape, symbols = view.shape(tensor), view.symbols(tensor)
    if shape is None:
        return None
    dims = [symbol if size is None else size for size, symbol in zip(shape, symbols, strict=True)]
    return None if "" in dims[1:] else dims


def _attributes(view: GraphView, node: NodeProto, moved: int) -> Mapping[str, object] | None:
    """Return the attributes that differ with one more axis in front, None where a node cannot have it."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in _ALONE or (node.op_type == "MatMul" and moved == 2):
        return {}
    if node.op_type in _IN_PAIRS:
        others = [name for name in node.input if view.is_weight(name)]
        scalar = all(view.weights[name].size == 1 and len(view.weights[name].shape) < 4 for name in others)
        return {} if scalar and moved + len(others) == 2 else None
    if node.op_type == "Softmax":
        usual = -1 if view.opset() >= 13 else 1
        return {"axis": 3} if attr_int(node, "axis", usual) in (-1, 2) else None
    if node.op_type == "Transpose" and list(attr_ints(node, "perm", (2, 1, 0))) == [0, 2, 1]:
        return {"perm": [0, 1, 3, 2]}
    return None
