"""Joins, cuts and selections along an axis."""

from __future__ import annotations

import numpy as np

from testing.random_graphs.blocks import Blocks
from testing.random_graphs.common import DoesNotFitError
from testing.random_graphs.network import Network

place = Blocks()


@place("Concat", weight=2)
def _concat(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    tensors = [x]
    for _ in range(g.integer(0, 2)):
        kind = g.integer(0, 3)
        fitting = [
            p for p in g.pool
            if len(g.shapes[p]) == len(g.shapes[x])
            and all(a == b for i, (a, b) in enumerate(zip(g.shapes[p], g.shapes[x], strict=True), 1) if i != axis)
        ]  # fmt: skip
        tensors.append(x if kind == 0 else g.choice(fitting) if fitting and kind < 3 else g.twin(x))
    return g.concat(tensors, axis)


@place("Split", weight=1.5)
def _split(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.9)
    size = g.shapes[x][axis - 1]
    parts = [p for p in (2, 3) if size % p == 0]
    if parts and g.chance(0.6):
        p = g.choice(parts)
        outs = g.split(x, axis, [size // p] * p, explicit=g.chance(0.5))
        if g.chance(0.5):
            return g.same(g.choice(["Mul", "Add"]), outs[0], g.same("Sigmoid", outs[-1]))
    elif size > 1:
        first = g.integer(1, size - 1)
        outs = g.split(x, axis, [first, size - first], explicit=True)
    else:
        raise DoesNotFitError
    g.pool += outs[1:]
    return g.concat([g.activation(o) for o in outs[::-1]], axis) if g.chance(0.5) else outs[0]


@place("Slice", weight=1.2)
def _slice(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    size = g.shapes[x][axis - 1]
    if size < 2:
        raise DoesNotFitError
    start = g.integer(0, size - 1)
    end = g.integer(start + 1, size)
    y = g.slice(x, axis, start, end)
    if g.opset >= 10 and g.chance(0.15) and size > 2:  # strided
        shape = list(g.shapes[x])
        shape[axis - 1] = -(-size // 2)
        bounds = [g.const([v]) for v in (0, size, axis, 2)]
        return g.node(op, [x, *bounds], shape)
    return y


@place("Gather", weight=1.5)
def _gather(g: Network, x: str, op: str) -> str:
    axis = g.channel_axis(x, 0.8)
    size = g.shapes[x][axis - 1]
    kind = g.integer(0, 3)
    if kind == 0 and len(g.shapes[x]) > 1:
        index = np.array(g.integer(0, size - 1), np.int64)
        return g.node(op, [x, g.const(index)], [d for i, d in enumerate(g.shapes[x], 1) if i != axis], axis=axis)
    if kind == 1:
        chosen = g.rng.permutation(size)
    else:
        chosen = g.rng.integers(-size if g.opset >= 11 else 0, size, g.integer(1, size + 2))
    shape = list(g.shapes[x])
    shape[axis - 1] = len(chosen)
    return g.node(op, [x, g.const(chosen.astype(np.int64))], shape, axis=axis)


@place("Shuffle", ranks=(2, 3), weight=2)
def _shuffle(g: Network, x: str, op: str) -> str:
    channels, *spatial = g.shapes[x]
    groups = [p for p in (2, 3, 4) if channels % p == 0 and channels > p]
    if not groups:
        raise DoesNotFitError
    p = g.choice(groups)
    y = g.reshape(x, [p, channels // p, *spatial])
    y = g.transpose(y, [2, 1, *range(3, len(spatial) + 3)])
    return g.reshape(y, [channels, *spatial])


@place("Pad", weight=1.2)
def _pad(g: Network, x: str, op: str) -> str:
    shape = g.shapes[x]
    rank = len(shape) + 1
    begin, end = np.zeros((2, rank), np.int64)
    for axis in {g.channel_axis(x, 0.7) for _ in range(2)}:
        begin[axis], end[axis] = g.integer(0, 2), g.integer(0, 2)
    mode = "constant"
    if g.chance(0.2) and all(b < d and e < d for b, e, d in zip(begin[1:], end[1:], shape, strict=True)):
        mode = g.choice(["reflect", "edge"])
    new = [int(d + b + e) for d, b, e in zip(shape, begin[1:], end[1:], strict=True)]
    if g.opset < 11:
        return g.node(op, [x], new, pads=[*begin.tolist(), *end.tolist()], mode=mode)
    value = [g.const(0.5)] if mode == "constant" and g.chance(0.4) else []
    if g.opset >= 18 and g.chance(0.6):
        axes = [int(a) for a in g.rng.permutation(np.arange(1, rank))]
        pads = [int(begin[a]) for a in axes] + [int(end[a]) for a in axes]
        args = [x, g.const(pads), *(value or [""]), g.const([a if g.chance(0.5) else a - rank for a in axes])]
        return g.node(op, args, new, mode=mode)
    return g.node(op, [x, g.const([*begin.tolist(), *end.tolist()]), *value], new, mode=mode)
