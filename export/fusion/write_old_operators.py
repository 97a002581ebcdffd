"""Write operators of early ONNX, which onnxruntime still runs, as those of today."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_float, attr_ints, attribute
from onnxfold.graph.patterns import Match, Mismatch, Op
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Rewrite

#: Since then bounds are inputs; exporters that write Crop are older.
_SLICES_BY_INPUT = 10


@dataclass(frozen=True)
class WriteOldOperators(Rewrite):
    """Replace ImageScaler and Affine by a Mul and an Add, and Crop by a Slice of height and width."""

    patterns = (Op("Affine|Crop|ImageScaler"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return nodes of today."""
        (node,) = match.nodes
        if node.op_type != "Crop":
            factor = np.array(attr_float(node, "scale", attr_float(node, "alpha", 1.0)), np.float32)
            bias = np.array(attribute(node, "bias", [attr_float(node, "beta", 0.0)]), np.float32).reshape(-1, 1, 1)
            scaled = view.fresh_name(f"{node.output[0]}_scaled")
            return [
                helper.make_node("Mul", [node.input[0], view.add_weight(f"{scaled}_by", factor)], [scaled], node.name),
                helper.make_node(
                    "Add", [scaled, view.add_weight(f"{scaled}_bias", bias)], node.output, f"{node.name}_add"
                ),
            ]
        if view.opset() >= _SLICES_BY_INPUT:
            raise Mismatch("in this operator set bounds of a Slice are inputs")
        shape, border = view.shape(node.input[0]), attr_ints(node, "border")
        size = attr_ints(node, "scale")  # height and width that are kept
        if shape is None or None in shape[2:] or len(border) < 4:
            raise Mismatch("sizes or borders are unknown")
        starts = [border[1], border[0]]
        kept = size or [int(d or 0) - border[i] - border[i + 2] for d, i in zip(shape[2:], (1, 0), strict=True)]
        ends = [a + b for a, b in zip(starts, kept, strict=True)]
        return [helper.make_node("Slice", node.input, node.output, node.name, starts=starts, ends=ends, axes=[2, 3])]
