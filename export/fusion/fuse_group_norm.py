"""Fuse the nodes around InstanceNormalization, from exporters below operator set 18, into GroupNormalization."""

from dataclasses import dataclass

import numpy as np
from onnx import NodeProto, helper

from onnxfold.graph.nodes import attr_float
from onnxfold.graph.patterns import chain
from onnxfold.graph.view import GraphView
from onnxfold.passes.base import Pass, PassResult


@dataclass(frozen=True)
class FuseGroupNorm(Pass):
    """Replace Reshape to (N, groups, -1), InstanceNormalization, Reshape back by GroupNormalization.

    Scale and bias of the InstanceNormalization must be all ones and all zeros, as a GroupNorm's own scale and bias,
    one per channel, follow as Mul and Add. Nobody else may read what lies in between.
    """

    def run(self, view: GraphView) -> PassResult:
        """Replace every match."""
        replacements: dict[str, NodeProto] = {}
        for first in view.nodes:
            match = chain(view, first, "Reshape", "InstanceNormalization", "Reshape")
            counted = _group_counts(view, *match) if match is not None else None
            if match is None or counted is None:
                continue
            _, norm, last = match
            channels, groups = counted
            scale = view.add_weight(f"{norm.output[0]}_scale", np.ones(channels, np.float32))
            bias = view.add_weight(f"{norm.output[0]}_bias", np.zeros(channels, np.float32))
            replacements[last.output[0]] = helper.make_node(
                "GroupNormalization", [first.input[0], scale, bias], [last.output[0]], norm.name,
                num_groups=groups, epsilon=attr_float(norm, "epsilon", 1e-5),
            )  # fmt: skip
        return PassResult(view.substitute(replacements))


def _group_counts(view: GraphView, first: NodeProto, norm: NodeProto, last: NodeProto) -> tuple[int, int] | None:
    """Return the number of channels and that of groups, None if the three nodes are no GroupNormalization."""
    if not all(view.is_weight(n) for n in norm.input[1:3]):
        return None
    scale, bias = (view.weight(n) for n in norm.input[1:3])
    source, inner, result = (view.shape(t) for t in (first.input[0], first.output[0], last.output[0]))
    if not np.all(scale == 1) or np.any(bias) or source is None or inner is None or source != result:
        return None
    if len(inner) != 3 or len(source) < 3 or source[0] != inner[0] or source[1] is None or inner[1] is None:
        return None
    whole = all(d is not None for d in source[2:]) and source[1] % inner[1] == 0
    return (source[1], inner[1]) if whole else None
