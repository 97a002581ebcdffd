"""Resizing, repetition and quantisation."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import DoesNotFitError
from testing.random_graphs.network import Network

place = Blocks()


@place("Resize", "Upsample", ranks=(2, 3), weight=1.2)
def _resize(g: Network, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    factor = g.choice([1, 2])
    scales = np.array([1, 1, *[factor] * len(spatial)], np.float32)
    shape = [channels, *[factor * s for s in spatial]]
    if op == "Upsample":
        return (
            g.node(op, [x], shape, scales=scales.tolist()) if g.opset < 9 else g.node(op, [x, g.const(scales)], shape)
        )
    if g.opset < 11:
        return g.node(op, [x, g.const(scales)], shape)
    roi = "" if g.opset >= 13 or g.chance(0.7) else g.const(np.zeros(0, np.float32))
    if g.batch and g.chance(0.5):
        empty = "" if g.opset >= 13 else g.const(np.zeros(0, np.float32))
        return g.node(op, [x, roi, empty, g.const([g.batch, *shape])], shape)
    if g.opset >= 18 and g.chance(0.4):
        axes = list(range(2, len(shape) + 1))
        return g.node(op, [x, roi, "", g.const(shape[1:])], shape, axes=axes)
    return g.node(op, [x, roi, g.const(scales)], shape)


@place("DepthToSpace", "SpaceToDepth", ranks=(3, 3))
def _depth_space(g: Network, x: str, op: str) -> str:
    c, h, w = g.shapes[x]
    if op == "SpaceToDepth":
        if h % 2 or w % 2:
            x, h, w = g.slice(g.slice(x, 2, 0, h // 2 * 2), 3, 0, w // 2 * 2), h // 2 * 2, w // 2 * 2
        if not h or not w:
            raise DoesNotFitError
        return g.node(op, [x], [4 * c, h // 2, w // 2], blocksize=2)
    x = g.conv(x, 4 * g.integer(1, 3), 1) if c % 4 else x
    mode = {"mode": g.choice(["DCR", "CRD"])} if g.opset >= 11 else {}
    return g.node(op, [x], [g.shapes[x][0] // 4, 2 * h, 2 * w], blocksize=2, **mode)


@place("Expand", weight=0.8)
def _expand(g: Network, x: str, op: str) -> str:
    shape = g.shapes[x]
    rank = len(shape)
    axis = g.integer(1, rank)
    narrow = g.reduce("ReduceMean", x, [axis], 1)
    target = [1, *shape] if g.chance(0.7) else [1, *[d if i == axis else 1 for i, d in enumerate(shape, 1)]]
    y = g.node(op, [narrow, g.const(target)], shape)
    return g.same("Mul", y, x) if g.chance(0.5) else y


@place("Tile", weight=0.8)
def _tile(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    repeats = [1] * (len(g.shapes[x]) + 1)
    repeats[axis] = 2
    return g.node(op, [x, g.const(repeats)], [d * r for d, r in zip(g.shapes[x], repeats[1:], strict=True)])


@place("QuantizeLinear", "DequantizeLinear", weight=0.7)
def _quantize(g: Network, x: str, op: str) -> str:
    if g.chance(0.2) and len(g.shapes[x]) > 1:  # a quantised weight
        c = g.shapes[x][0]
        weight = g.const(g.rng.integers(-90, 90, (g.width(), c, *[1] * (len(g.shapes[x]) - 1))).astype(np.int8))
        real = g.node("DequantizeLinear", [weight, g.const(np.array(0.01, np.float32))])
        width = numpy_helper.to_array(next(t for t in g.initializers if t.name == weight)).shape[0] if not (
            g.constant_nodes) else 0  # fmt: skip
        if not width:
            raise DoesNotFitError
        return g.node("Conv", [x, real], [width, *g.shapes[x][1:]])
    if g.chance(0.2) and g.opset >= 13:  # per channel
        c = g.shapes[x][0]
        scale, zero = g.const(np.full(c, 1 / 32, np.float32)), g.const(np.full(c, 128, np.uint8))
        return g.same("DequantizeLinear", g.same("QuantizeLinear", x, scale, zero, axis=1), scale, zero, axis=1)
    scale, zero = g.const(np.array(1 / 32, np.float32)), g.const(np.array(128, np.uint8))
    return g.same("DequantizeLinear", g.same("QuantizeLinear", x, scale, zero), scale, zero)
