"""Layers of a graph under construction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from testing.random_graphs.common import DoesNotFitError
from testing.random_graphs.shaped_graph import ShapedGraph


class Network(ShapedGraph):
    """A graph with layers, and choices among what it holds."""

    def conv(self, x: str, outputs: int, kernel: int | None = None, groups: int = 1, stride: int = 1) -> str:
        """Add a convolution that keeps the size at stride 1."""
        channels, *spatial = self.shapes[x]
        rank = len(spatial)
        kernel = kernel or self.choice([1, 2, 3])
        pad = kernel // 2
        if any(s + 2 * pad < kernel for s in spatial):
            raise DoesNotFitError
        fan = channels // groups * kernel**rank
        inputs = [x, self.const(self.normal(outputs, channels // groups, *[kernel] * rank, std=1.4 / math.sqrt(fan)))]
        if self.chance(0.7):
            inputs.append(self.bias(outputs))
        shape = [outputs, *[(s + 2 * pad - kernel) // stride + 1 for s in spatial]]
        attrs = {"kernel_shape": [kernel] * rank} if self.chance(0.7) else {}
        return self.node("Conv", inputs, shape, pads=[pad] * (2 * rank), strides=[stride] * rank, group=groups, **attrs)

    def linear(self, x: str, outputs: int) -> str:
        """A MatMul over the last axis, with a bias now and then."""
        *leading, inputs = self.shapes[x]
        weight = self.const(self.normal(inputs, outputs, std=1.4 / math.sqrt(inputs)))
        y = self.node("MatMul", [x, weight], [*leading, outputs])
        if self.chance(0.6):
            bias = self.bias(outputs)
            y = self.node("Add", [y, bias] if self.chance(0.5) else [bias, y], [*leading, outputs])
        return y

    def gemm(self, x: str, outputs: int) -> str:
        """Add a Gemm on a vector."""
        (inputs,) = self.shapes[x]
        trans = self.integer(0, 1)
        weight = self.normal(inputs, outputs, std=1.4 / math.sqrt(inputs))
        args = [x, self.const(weight.T if trans else weight)]
        if self.opset < 11 or self.chance(0.7):
            args.append(self.bias(outputs))
        return self.node("Gemm", args, [outputs], transB=trans)

    def layer(self, x: str) -> str:
        """Some producing layer on any tensor."""
        rank = len(self.shapes[x])
        if rank == 1:
            return self.gemm(x, self.width()) if self.chance(0.6) else self.linear(x, self.width())
        conv_there = self.dtype != np.float64
        if conv_there and self.chance(0.75):
            return self.conv(x, self.width(), self.choice([1, 1, 3] if min(self.shapes[x][1:]) > 1 else [1]))
        return self.linear(x, self.width())

    def activation(self, x: str) -> str:
        """Add an activation, more often than not."""
        kinds = ["Relu", "Relu", "Sigmoid", "Tanh", "Relu" if self.dtype == np.float64 else "LeakyRelu"]
        return self.same(self.choice(kinds), x) if self.chance(0.6) else x

    def twin(self, x: str) -> str:
        """Another tensor of the same shape: from the pool, a layer on `x`, or a function of `x`."""
        same = [p for p in self.pool if self.shapes[p] == self.shapes[x]]
        if same and self.chance(0.5):
            return self.choice(same)
        rank = len(self.shapes[x])
        if rank > 1 and self.dtype != np.float64 and self.chance(0.6):
            return self.conv(x, self.shapes[x][0], 1)
        if self.chance(0.7):
            return self.linear(x, self.shapes[x][-1])
        return self.same("Sigmoid", x)

    def broadcast_constant(self, x: str, low: float = 0.5, high: float = 1.5, dtype: Any = None) -> str:
        """A constant that broadcasts to `x`: scalar, per channel, per position, full."""
        shape = self.shapes[x]
        kind = self.integer(0, 4)
        if kind == 0:
            dims: tuple[int, ...] = self.choice([(), (1,), (1,) * (len(shape) + 1)])
        elif kind <= 2:
            dims = (shape[0], *[1] * (len(shape) - 1))
            dims = (1, *dims) if self.chance(0.5) else dims
        elif kind == 3:
            dims = (shape[-1],)
        else:
            dims = shape
        values = self.rng.uniform(low, high, dims)
        return self.const(np.asarray(values, self.dtype if dtype is None else dtype))

    def channel_axis(self, x: str, likely: float = 0.6) -> int:
        """An axis, counting the batch as axis 0: the first or the last most often."""
        rank = len(self.shapes[x])
        return int(self.choice([1, rank]) if self.chance(likely) else self.integer(1, rank))
