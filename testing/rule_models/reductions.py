"""Pools, reductions and orders."""

from __future__ import annotations

import numpy as np
from onnx import helper

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle, cast


def through_pool(op: str, **attrs: object) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        size = 1 if op.startswith("Global") else 4
        window = {} if op.startswith("Global") else {"kernel_shape": [2, 2], "strides": [2, 2]}
        return g.node(op, [x], [WIDTH, size, size], **window, **attrs)

    return middle


def through_reduce(op: str, opset: int, keepdims: int) -> Middle:
    """Over the spatial axes; as an attribute where the operator has it, else as an input."""

    def middle(g: GraphBuilder, x: str) -> str:
        shape = [WIDTH, 1, 1] if keepdims else [WIDTH]
        if opset < (13 if op == "ReduceSum" else 18):
            return g.node(op, [x], shape, axes=[-2, -1], keepdims=keepdims)
        return g.node(op, [x, g.constant("axes", np.array([2, 3], np.int64))], shape, keepdims=keepdims)

    return middle


def through_arg(op: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        return cast(g, g.node(op, [x], [WIDTH, 1, 8], axis=2))

    return middle


def through_top_k(g: GraphBuilder, x: str) -> str:
    g.nodes.append(helper.make_node("TopK", [x, g.constant("k", np.array([3], np.int64))], ["top", "place"], axis=3))
    g.shapes["top"] = (WIDTH, 8, 3)
    return "top"


def through_cum_sum(g: GraphBuilder, x: str) -> str:
    return g.node("CumSum", [x, g.constant("axis", np.array(3, np.int64))], [WIDTH, 8, 8])
