"""Give heads an axis of their own where views put them on one axis with positions."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import attr_int, node_key, rewritten
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult

#: Operators that treat every row of the last axis by itself.
_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


@dataclass(frozen=True)
class HeadsToAxis(Pass):
    """Let norms of single heads see heads and positions on two axes.

    Case 1: (B, S, N*H) -> (B, S*N, H) -> norm over H -> (B, S, N*H), as onnxruntime-genai writes the norms of Qwen3's
    queries and keys, goes through (B, S, N, H). Heads and positions on one axis, of a size that is not known, hide
    which of its positions are which head.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewrite the targets of both views; results between them get names of their own with their new shapes."""
        changed: dict[str, NodeProto] = {}
        for first in view.nodes:
            match = _views(view, first)
            size = _row(view, match[0], match[-1]) if match else 0
            if not size:
                continue
            source = first.input[0]
            *outer, width = (d or 0 for d in view.shape(source) or ())  # 0 copies
            for node in match:
                result = match[-1].output[0] if node is match[-1] else view.fresh_name(f"{node.output[0]}_apart")
                if node.op_type == "Reshape":
                    inner = [width] if node is match[-1] else [width // size, size]
                    shape = view.add_weight(f"{result}_shape", np.array([*outer, *inner], np.int64))
                    made = rewritten(node, inputs=[source, shape], outputs=[result], without=["allowzero"])
                else:
                    attributes = {"axis": -1}
                    made = rewritten(node, inputs=[source, *node.input[1:]], outputs=[result], attributes=attributes)
                changed[node_key(node)] = made
                source = result
        return PassResult(view.substitute(changed))


def _views(view: GraphView, first: NodeProto) -> list[NodeProto]:
    """Return a Reshape, norms of the last axis alone, and the next Reshape; nothing where these do not follow."""
    if first.op_type != "Reshape":
        return []
    last_axis = len(view.shape(first.output[0]) or ()) - 1
    match = [first]
    while (node := only_reader(view, match[-1].output[0])) is not None and len(node.output) == 1:
        match.append(node)
        if node.op_type == "Reshape":
            return match if len(match) > 2 else []
        if node.op_type not in _NORMS or attr_int(node, "axis", -1) not in (-1, last_axis):
            return []
    return []


def _row(view: GraphView, first: NodeProto, last: NodeProto) -> int:
    """Return the width of a row between two views that together change nothing, 0 where they do something else."""
    outer, inner, back = (view.shape(name) for name in (first.input[0], first.output[0], last.output[0]))
    if not outer or not inner or not back or not len(outer) == len(inner) == len(back):
        return 0
    width, size = outer[-1], inner[-1]
    if width is None or size is None or back[-1] != width or width % size or width == size:
        return 0
    pairs = zip(outer, view.symbols(first.input[0]), back, view.symbols(last.output[0]), strict=True)
    # One dimension follows from the others.
    unlike = sum((a, s) != (b, t) or (a is None and not s) for a, s, b, t in list(pairs)[:-1])
    return size if unlike <= 1 else 0
