"""Fuse the nodes around InstanceNormalization, from exporters below operator set 18, into GroupNormalization."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_float
from onnxfold.graph.patterns import Match, Mismatch, chain
from onnxfold.graph.view import GraphView
from onnxfold.passes.rewrite import Rewrite


@dataclass(frozen=True)
class FuseGroupNorm(Rewrite):
    """Replace Reshape to (N, groups, -1), InstanceNormalization, Reshape back by GroupNormalization.

    Scale and bias of the InstanceNormalization must be all ones and all zeros, as a GroupNorm's own scale and bias,
    one per channel, follow as Mul and Add. Nobody else may read what lies in between.
    """

    patterns = (chain("Reshape", "InstanceNormalization", "Reshape"),)

    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return a GroupNormalization, if the three nodes are none of something else."""
        first, norm, last = match.nodes
        if not all(view.is_weight(n) for n in norm.input[1:3]):
            raise Mismatch("scale and bias are computed")
        if np.any(view.weight(norm.input[1]) != 1) or np.any(view.weight(norm.input[2])):
            raise Mismatch("scale and bias are not ones and zeros")
        source, inner, result = (view.shape(t) for t in (first.input[0], first.output[0], last.output[0]))
        if source is None or inner is None or source != result or len(inner) != 3 or len(source) < 3:
            raise Mismatch("the last view does not undo the first one")
        channels, groups = source[1], inner[1]
        if source[0] != inner[0] or channels is None or groups is None or None in source[2:] or channels % groups:
            raise Mismatch("the views do not cut channels into groups")
        result_name = norm.output[0]
        scale = view.add_weight(f"{result_name}_scale", np.ones(channels, np.float32))
        bias = view.add_weight(f"{result_name}_bias", np.zeros(channels, np.float32))
        made = helper.make_node(
            "GroupNormalization", [first.input[0], scale, bias], [last.output[0]], norm.name,
            num_groups=groups, epsilon=attr_float(norm, "epsilon", 1e-5),
        )  # fmt: skip
        return [made]
