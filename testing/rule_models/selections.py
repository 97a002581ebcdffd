"""Joins, cuts and selections along the channels."""

from __future__ import annotations

import numpy as np
from onnx import helper

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle


def through_gather(g: GraphBuilder, x: str) -> str:
    """Two channels twice, the others once, one counted from the end; then all in reverse, times a row of the image."""
    chosen = g.constant("chosen", np.array([4, 0, -1, 2, 1, 3, 4, 2], np.int64))
    y = g.node("Gather", [x, chosen], [8, 8, 8], axis=1)
    row = g.node("Gather", [y, g.constant("row", np.array([3], np.int64))], [8, 1, 8], axis=2)
    return g.node("Gather", [g.mul(y, row), g.constant("reverse", np.arange(8)[::-1].copy())], [8, 8, 8], axis=1)


def through_gather_order(g: GraphBuilder, x: str) -> str:
    """Two filters per channel, whose results change places for every second channel."""
    filtered = g.relu(g.conv(x, 2 * WIDTH, groups=WIDTH))
    order = np.arange(2 * WIDTH).reshape(-1, 2)
    order[1::2] = order[1::2, ::-1]
    return g.node("Gather", [filtered, g.constant("order", order.reshape(-1))], [2 * WIDTH, 8, 8], axis=1)


def through_shuffle(g: GraphBuilder, x: str) -> str:
    """ShuffleNet's channel shuffle behind a grouped convolution."""
    y = g.conv(x, WIDTH, 1, groups=2)
    split = g.node("Reshape", [y, g.constant("split", np.array([0, 2, 3, 8, 8], np.int64))], [2, 3, 8, 8])
    swapped = g.node("Transpose", [split], [3, 2, 8, 8], perm=[0, 2, 1, 3, 4])
    y = g.node("Reshape", [swapped, g.constant("join", np.array([0, WIDTH, 8, 8], np.int64))], [WIDTH, 8, 8])
    return g.conv(y, WIDTH, groups=WIDTH)


def through_split(opset: int, equal: bool = False) -> Middle:
    """Two unequal parts with a layer for each, or three equal ones that are multiplied."""

    def middle(g: GraphBuilder, x: str) -> str:
        sizes = [2, 2, 2] if equal else [2, 4]
        outputs = [f"part_{i}" for i in range(len(sizes))]
        inputs, attrs = [x], {"axis": 1}
        if equal:
            attrs.update({"num_outputs": 3} if opset >= 18 else {})
        elif opset < 13:
            attrs["split"] = sizes
        else:
            inputs.append(g.constant("sizes", np.array(sizes, np.int64)))
        g.nodes.append(helper.make_node("Split", inputs, outputs, name="split", **attrs))
        for name, size in zip(outputs, sizes, strict=True):
            g.shapes[name] = (size, 8, 8)
        if equal:
            return g.mul(g.mul(outputs[0], outputs[1]), outputs[2])
        return g.concat(outputs[1], g.conv(outputs[0], 3), outputs[0])

    return middle


def through_slice(opset: int) -> Middle:
    """All channels but the first, up to the last but one, of the right part of the image."""

    def middle(g: GraphBuilder, x: str) -> str:
        starts, ends, axes = [1, -6], [-1, 2**31], [1, 3]
        if opset < 10:
            return g.node("Slice", [x], [WIDTH - 2, 8, 6], starts=starts, ends=ends, axes=axes)
        bounds = {"starts": starts, "ends": ends, "axes": axes, "steps": [1, 1]}
        constants = [g.constant(name, np.array(values, np.int64)) for name, values in bounds.items()]
        return g.node("Slice", [x, *constants], [WIDTH - 2, 8, 6])

    return middle


def through_concat(g: GraphBuilder, x: str) -> str:
    return g.concat(x, g.conv("x", 4), x)
