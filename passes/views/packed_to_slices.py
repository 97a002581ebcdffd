"""Cut packed queries, keys and values apart before they get axes of their own."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_int, attr_ints, node_key
from onnxfold.graph.patterns import only_reader
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class PackedToSlices(Pass):
    """Slice before a Reshape what is gathered behind it.

    Case 1: (B, S, 3*N*H) -> (B, S, 3, N, H) -> Transpose -> Gather of part i, as the attention of ViTs is written,
    becomes a Slice of the part's N*H positions -> (B, S, N, H) -> Transpose. An axis of parts in front of the one with
    the heads hides which positions are which head.
    """

    def run(self, view: GraphView) -> PassResult:
        """Rewrite every Reshape of which only single parts are read."""
        made: dict[str, list[NodeProto]] = {}
        dropped: set[str] = set()
        for node in view.nodes:
            parts = _parts(view, node)
            if parts is None:
                continue
            reshape, transpose, gathers = parts
            dropped.update(n.output[0] for n in (reshape, transpose) if n is not None)
            for gather in gathers:
                made[node_key(gather)] = _slice(view, reshape, transpose, gather)
        if made:
            kept = (n for n in view.nodes if node_key(n) not in dropped)
            view.replace_nodes(new for n in kept for new in made.get(node_key(n), [n]))
        return PassResult(bool(made))


def _parts(view: GraphView, node: NodeProto) -> tuple[NodeProto, NodeProto | None, list[NodeProto]] | None:
    """Return the Reshape, the Transpose if there is one, and the readers of single parts."""
    if node.op_type != "Reshape":
        return None
    before, after = view.shape(node.input[0]), view.shape(node.output[0])
    if not before or after is None or len(after) <= len(before) or before[-1] is None:
        return None
    axis = len(before) - 1
    sizes = after[axis:]
    if None in sizes or prod(d or 0 for d in sizes) != before[-1] or 1 in sizes[:2]:
        return None
    reader = only_reader(view, node.output[0])
    transpose = reader if reader is not None and reader.op_type == "Transpose" else None
    source = node if transpose is None else transpose
    if transpose is not None:
        axis = attr_ints(transpose, "perm", reversed(range(len(after)))).index(axis)
    readers = view.consumers(source.output[0])
    if not readers or source.output[0] in view.output_names:
        return None
    return (node, transpose, readers) if all(_picks_one(view, n, axis, len(after)) for n in readers) else None


def _picks_one(view: GraphView, node: NodeProto, axis: int, rank: int) -> bool:
    """Whether a node takes one position of an axis, which vanishes."""
    if node.op_type != "Gather" or attr_int(node, "axis", 0) % rank != axis or not view.is_weight(node.input[1]):
        return False
    return view.shape(node.input[1]) == ()


def _slice(view: GraphView, reshape: NodeProto, transpose: NodeProto | None, gather: NodeProto) -> list[NodeProto]:
    """Return nodes that slice, reshape and transpose a part."""
    shape, before = view.shape(reshape.output[0]) or (), view.shape(reshape.input[0]) or ()
    rank = len(before)
    parts, *sizes = [d or 0 for d in shape[rank - 1 :]]
    width = prod(sizes)
    index = int(view.weight(gather.input[1])) % parts
    result = gather.output[0]
    numbers = {
        "starts": [index * width],
        "ends": [(index + 1) * width],
        "axes": [rank - 1],
        "shape": [*(size or 0 for size in before[:-1]), *sizes],  # 0 copies
    }
    names = {key: view.add_weight(f"{result}_{key}", np.array(value, np.int64)) for key, value in numbers.items()}
    perm = list(range(len(shape) - 1))
    if transpose is not None:
        order = attr_ints(transpose, "perm", reversed(range(len(shape))))
        perm = [axis - (axis > rank - 1) for axis in order if axis != rank - 1]
    bounds = [names[key] for key in ("starts", "ends", "axes")]
    steps: list[tuple[str, list[str], dict[str, Any]]] = [("Slice", bounds, {})]
    if len(sizes) > 1:
        steps.append(("Reshape", [names["shape"]], {}))
    if perm != sorted(perm):
        steps.append(("Transpose", [], {"perm": perm}))
    source, nodes = reshape.input[0], []
    for number, (op_type, constants, attributes) in enumerate(steps):
        target = result if number == len(steps) - 1 else view.fresh_name(f"{result}_{op_type.lower()}")
        nodes.append(helper.make_node(op_type, [source, *constants], [target], target, **attributes))
        source = target
    return nodes
