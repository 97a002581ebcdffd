"""Operators whose form depends on the operator set."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testing.random_graphs.graph import Graph


class ShapedGraph(Graph):
    """A graph with the operators that reduce, reshape, join and cut, in the form of every operator set."""

    def reduce(self, op: str, x: str, axes: Sequence[int], keepdims: int) -> str:
        """`axes` count the batch as axis 0."""
        rank = len(self.shapes[x]) + 1
        gone = {a % rank for a in axes}
        shape = [1 if i in gone else d for i, d in enumerate(self.shapes[x], 1) if keepdims or i not in gone]
        if self.opset < (13 if op == "ReduceSum" else 18):
            return self.node(op, [x], shape, axes=list(axes), keepdims=keepdims)
        return self.node(op, [x, self.const(list(axes))], shape, keepdims=keepdims)

    def unsqueeze(self, x: str, axes: Sequence[int]) -> str:
        """Insert axes of length 1; `axes` count the batch as axis 0."""
        shape = list(self.shapes[x])
        for axis in sorted(axes):
            shape.insert(axis - 1, 1)
        if self.opset < 13:
            return self.node("Unsqueeze", [x], shape, axes=list(axes))
        return self.node("Unsqueeze", [x, self.const(list(axes))], shape)

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        """Remove axes of length 1; `axes` count the batch as axis 0."""
        shape = [d for i, d in enumerate(self.shapes[x], 1) if i not in axes]
        if self.opset < 13:
            return self.node("Squeeze", [x], shape, axes=list(axes))
        return self.node("Squeeze", [x, self.const(list(axes))], shape)

    def squeeze_at(self, x: str, axis: int) -> str:
        """Squeeze an axis of a tensor whose batch does not come first."""
        if self.opset < 13:
            return self.node("Squeeze", [x], [], axes=[axis])
        return self.node("Squeeze", [x, self.const([axis])], [])

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """The batch written as 0, -1 or its number; else one dimension may be -1, or 0 where it is copied."""
        old = self.shapes[x]
        batch = [0] + ([self.batch] if self.batch else [])
        target = [self.choice(batch), *shape]
        if self.chance(0.3):
            target[0] = -1
        elif len(shape) and self.chance(0.3):
            target[1 + int(self.rng.integers(len(shape)))] = -1
        for i, d in enumerate(shape):
            if i < len(old) and old[i] == d and self.chance(0.15) and target[i + 1] > 0:
                target[i + 1] = 0
        return self.node("Reshape", [x, self.const(target)], shape)

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """`perm` numbers the axes behind the batch from 1 on."""
        return self.node("Transpose", [x], [self.shapes[x][p - 1] for p in perm], perm=[0, *perm])

    def concat(self, tensors: Sequence[str], axis: int) -> str:
        """`axis` counts the batch as axis 0."""
        shape = list(self.shapes[tensors[0]])
        shape[axis - 1] = sum(self.shapes[t][axis - 1] for t in tensors)
        written = axis if self.chance(0.6) else axis - len(shape) - 1
        return self.node("Concat", tensors, shape, axis=written if self.opset >= 11 else axis)

    def flatten(self, x: str) -> str:
        """Join all axes behind the batch."""
        return self.node("Flatten", [x], [math.prod(self.shapes[x])], axis=1)

    def slice(self, x: str, axis: int, start: int, end: int) -> str:
        """`axis` counts the batch as axis 0."""
        shape = list(self.shapes[x])
        size = shape[axis - 1]
        shape[axis - 1] = end - start
        first = self.choice([start, start - size]) if start else 0
        last = self.choice([end, end - size]) if end < size else self.choice([size, 2**31 - 1, 2**62])
        if self.opset < 10:
            return self.node("Slice", [x], shape, starts=[first], ends=[last], axes=[axis])
        constants = [self.const([v]) for v in (first, last, axis)]
        if self.chance(0.5):
            constants.append(self.const([1]))
        return self.node("Slice", [x, *constants], shape)

    def split(self, x: str, axis: int, sizes: Sequence[int], explicit: bool) -> list[str]:
        """`axis` counts the batch as axis 0."""
        shapes = []
        for size in sizes:
            shape = list(self.shapes[x])
            shape[axis - 1] = size
            shapes.append(tuple(shape))
        inputs, attrs = [x], {"axis": axis}
        if explicit and self.opset < 13:
            attrs["split"] = list(sizes)
        elif explicit:
            inputs.append(self.const(list(sizes)))
        elif self.opset >= 18:
            attrs["num_outputs"] = len(sizes)
        return self.nodes_out("Split", inputs, shapes, **attrs)
