"""Reshapes, transpositions, computed sizes and padding."""

from __future__ import annotations

import numpy as np

from testing.graph_builder import GraphBuilder
from testing.rule_models.net import WIDTH, Middle, cast


def through_pad(opset: int) -> Middle:
    """Two channels in front and one behind, and one position around the image; added to a wider stream."""
    pads = [0, 2, 1, 1, 0, 1, 1, 1]

    def middle(g: GraphBuilder, x: str) -> str:
        shape = [WIDTH + 3, 10, 10]
        if opset < 11:
            y = g.node("Pad", [x], shape, pads=pads)
        elif opset < 18:
            y = g.node("Pad", [x, g.constant("pads", np.array(pads, np.int64))], shape)
        else:
            part = g.constant("pads", np.array([1, 2, 1, 1, 1, 1], np.int64))
            y = g.node("Pad", [x, part, "", g.constant("axes", np.array([3, 1, -2], np.int64))], shape)
        return g.add(y, g.conv("x", WIDTH + 3, 3, pad=2))

    return middle


def through_squeeze(opset: int) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        pooled, name = g.global_average_pool(x), "axes"
        if opset < 13:
            flat = g.node("Squeeze", [pooled], [WIDTH], axes=[2, -1])
            return g.node("Unsqueeze", [flat], [WIDTH, 1, 1], axes=[2, 3])
        axes = g.constant(name, np.array([2, 3], np.int64))
        return g.node("Unsqueeze", [g.node("Squeeze", [pooled, axes], [WIDTH]), axes], [WIDTH, 1, 1])

    return middle


def through_shape(g: GraphBuilder, x: str) -> str:
    """The height of the image scales it: only that axis must stay."""
    shape = g.node("Shape", [x], [])
    height = g.node("Gather", [shape, g.constant("height", np.array(2, np.int64))], [], axis=0)
    return g.mul(x, cast(g, height))


def through_size(g: GraphBuilder, x: str) -> str:
    """The number of elements of another tensor scales the image."""
    return g.mul(x, cast(g, g.node("Size", [g.conv("x", 4, 1)], [])))


def through_reshape(g: GraphBuilder, x: str) -> str:
    target = g.constant("target", np.array([0, WIDTH, 4, 16], np.int64))
    back = g.constant("back", np.array([-1, WIDTH, 8, 8], np.int64))
    return g.node("Reshape", [g.node("Reshape", [x, target], [WIDTH, 4, 16]), back], [WIDTH, 8, 8])


def through_depth_to_space(mode: str) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        deep = g.conv(x, 4 * WIDTH, stride=2)
        return g.mul(x, g.sigmoid(g.node("DepthToSpace", [deep], [WIDTH, 8, 8], blocksize=2, mode=mode)))

    return middle


def through_space_to_depth(g: GraphBuilder, x: str) -> str:
    return g.node("SpaceToDepth", [x], [4 * WIDTH, 4, 4], blocksize=2)


def through_expand(g: GraphBuilder, x: str) -> str:
    target = g.constant("target", np.array([1, WIDTH, 8, 8], np.int64))
    wide = g.node("Expand", [g.global_average_pool(x), target], [WIDTH, 8, 8])
    return g.mul(x, g.relu(wide))  # a product alone would not need it


def through_tile(g: GraphBuilder, x: str) -> str:
    return g.node("Tile", [x, g.constant("repeats", np.array([1, 2, 1, 1], np.int64))], [2 * WIDTH, 8, 8])


def through_computed_tile(g: GraphBuilder, x: str) -> str:
    """How often the batch is repeated is computed, once; other axes are not repeated."""
    batch = g.node("Gather", [g.node("Shape", [x], []), g.constant("first", np.array(0, np.int64))], [])
    once = g.node("Unsqueeze", [g.node("Div", [batch, batch], []), g.constant("axis", np.zeros(1, np.int64))], [])
    repeats = g.node("Concat", [once, g.constant("ones", np.ones(3, np.int64))], [], axis=0)
    return g.node("Tile", [x, repeats], [WIDTH, 8, 8])


def through_resize(opset: int, sizes: bool = False) -> Middle:
    def middle(g: GraphBuilder, x: str) -> str:
        scales = np.array([1, 1, 2, 2], np.float32)
        if opset < 9:
            return g.node("Upsample", [x], [WIDTH, 16, 16], scales=scales.tolist())
        if opset < 11:
            return g.node("Upsample" if opset == 9 else "Resize", [x, g.constant("scales", scales)], [WIDTH, 16, 16])
        if sizes:
            target = g.constant("target", np.array([3, WIDTH, 16, 16], np.int64))
            return g.node("Resize", [x, "", "", target], [WIDTH, 16, 16])
        return g.node("Resize", [x, "", g.constant("scales", scales)], [WIDTH, 16, 16])

    return middle


def through_flatten(g: GraphBuilder, x: str) -> str:
    return g.flatten(x)


def through_transpose(g: GraphBuilder, x: str) -> str:
    moved = g.node("Transpose", [x], [8, 8, WIDTH], perm=[0, 2, 3, 1])
    return g.node("Transpose", [g.relu(moved)], [WIDTH, 8, 8], perm=[0, 3, 1, 2])
