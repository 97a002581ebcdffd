"""Normalisations."""

from __future__ import annotations

import numpy as np
import onnx

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle, build_net, times


def through_softmax(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        return g.node(op, [times(g, x, 5.0)], [WIDTH, 8, 8], axis=2)

    return middle


def through_instance_norm(g: GraphBuilder, x: str) -> str:
    scale, shift = g.constant("scale", g.normal(WIDTH)), g.constant("shift", g.normal(WIDTH))
    return g.node("InstanceNormalization", [x, scale, shift], [WIDTH, 8, 8])


def through_norm_over_rows(op: str, inputs: int) -> Middle:
    """Normalise over the rows of the image, so that channels are independent samples."""

    def middle(g: GraphBuilder, x: str) -> str:
        parameters = [g.constant(f"parameter_{i}", g.uniform(0.5, 1.5, 8)) for i in range(inputs)]
        return g.node(op, [x, *parameters], [WIDTH, 8, 8], axis=-1)

    return middle


def through_skip_norm(op: str, *, sums: bool = False) -> Middle:
    """Normalise the sum of two images over their positions; with `sums`, a layer reads the sum as well."""

    def middle(g: GraphBuilder, x: str) -> str:
        flat = g.node("Reshape", [x, g.constant("flat", np.array([0, WIDTH, 64], np.int64))], [WIDTH, 64])
        other = g.constant("flat_too", np.array([0, WIDTH, 64], np.int64))
        skip = g.node("Reshape", [g.conv("x", WIDTH), other], [WIDTH, 64])
        scale = g.constant("scale", g.uniform(0.5, 1.5, 64))
        normed = g.node(op, [flat, skip, scale], [WIDTH, 64], domain="com.microsoft")
        if sums:
            shift = [g.constant("shift", g.normal(64))] if op == "SkipLayerNormalization" else []
            inputs = [*shift, g.constant("bias", g.normal(64))]
            g.nodes[-1].input.extend(inputs)
            g.nodes[-1].output.extend(["", "", "sum"])
            g.shapes["sum"] = (WIDTH, 64)
            normed = g.add(normed, "sum")
        return g.node("Reshape", [normed, g.constant("image", np.array([0, WIDTH, 8, 8], np.int64))], [WIDTH, 8, 8])

    return middle


def through_group_norm(g: GraphBuilder, x: str) -> str:
    since = 21 if g.opset >= 21 else 18
    size = WIDTH if since == 21 else 2
    scale, shift = (g.constant(name, g.uniform(0.5, 1.5, size)) for name in ("scale", "shift"))
    return g.node("GroupNormalization", [x, scale, shift], [WIDTH, 8, 8], num_groups=2)


def through_reshaped_group_norm(g: GraphBuilder, x: str) -> str:
    """As exporters write GroupNormalization before operator set 18."""
    ones, zeros = g.constant("ones", np.ones(2, np.float32)), g.constant("zeros", np.zeros(2, np.float32))
    groups = g.node("Reshape", [x, g.constant("groups", np.array([0, 2, -1], np.int64))], [2, WIDTH * 32])
    normed = g.node("InstanceNormalization", [groups, ones, zeros], [2, WIDTH * 32])
    back = g.constant("back", np.array([0, WIDTH, 8, 8], np.int64))
    image = g.node("Reshape", [normed, back], [WIDTH, 8, 8])
    scaled = g.node("Mul", [image, g.constant("scale", g.uniform(0.5, 1.5, WIDTH, 1, 1))], [WIDTH, 8, 8])
    return g.node("Add", [scaled, g.constant("shift", g.normal(WIDTH, 1, 1))], [WIDTH, 8, 8])


def through_lrn(g: GraphBuilder, x: str) -> str:
    return g.node("LRN", [x], [WIDTH, 8, 8], size=3)


def through_lp_normalization(g: GraphBuilder, x: str) -> str:
    return g.node("LpNormalization", [x], [WIDTH, 8, 8], axis=-1)


def through_batch_norm(g: GraphBuilder, x: str) -> str:
    return g.batch_norm(x)


def simplified_layer_norm() -> onnx.ModelProto:
    model = build_net("LayerNormalization", through_norm_over_rows("LayerNormalization", 1), 17)
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.op_type = "SimplifiedLayerNormalization"
    return model
