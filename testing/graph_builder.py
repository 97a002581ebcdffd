"""A small builder of ONNX graphs with seeded random weights, for testing/models.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FloatArray = NDArray[np.float32]


class GraphBuilder:
    """Adds named nodes to one graph and tracks every tensor's shape without the (symbolic) batch axis."""

    def __init__(self, name: str, seed: int, input_shape: Sequence[int], opset: int = 17, ir_version: int = 8) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.ir_version = ir_version
        self.shapes: dict[str, tuple[int, ...]] = {"x": tuple(input_shape)}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.outputs: list[str] = []
        self.domains: dict[str, int] = {}
        self._count: dict[str, int] = {}

    def _fresh(self, stem: str) -> str:
        index = self._count.get(stem, 0)
        self._count[stem] = index + 1
        return f"{stem}_{index}"

    def channels(self, x: str) -> int:
        return self.shapes[x][0]

    def normal(self, *shape: int, std: float = 1.0, mean: float = 0.0) -> FloatArray:
        return self.rng.normal(mean, std, shape).astype(np.float32)

    def uniform(self, low: float, high: float, *shape: int) -> FloatArray:
        return self.rng.uniform(low, high, shape).astype(np.float32)

    def constant(self, name: str, value: NDArray[np.generic]) -> str:
        """Add an initializer of exactly this name."""
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], name: str | None = None, **attrs: Any) -> str:
        """Add any one-output node; ``shape`` is that of the output without the batch axis."""
        name = name or self._fresh(op.lower())
        out = f"{name}_out"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=name, **attrs))
        self.shapes[out] = tuple(shape)
        return out

    def unary(self, op: str, x: str, **attrs: Any) -> str:
        return self.node(op, [x], self.shapes[x], **attrs)

    def relu(self, x: str) -> str:
        return self.unary("Relu", x)

    def sigmoid(self, x: str) -> str:
        return self.unary("Sigmoid", x)

    def relu6(self, x: str) -> str:
        name = self._fresh("clip")
        low = self.constant(f"{name}_min", np.array(0, np.float32))
        high = self.constant(f"{name}_max", np.array(6, np.float32))
        return self.node("Clip", [x, low, high], self.shapes[x], name)

    def prelu(self, x: str, shared: bool = False) -> str:
        name = self._fresh("prelu")
        shape = (1,) if shared else (self.channels(x), *[1] * (len(self.shapes[x]) - 1))
        slope = self.constant(f"{name}_slope", self.uniform(0.05, 0.5, *shape))
        return self.node("PRelu", [x, slope], self.shapes[x], name)

    def conv(
        self,
        x: str,
        out_channels: int,
        kernel: int = 3,
        groups: int = 1,
        bias: bool = True,
        stride: int = 1,
        pad: int | None = None,
    ) -> str:
        """Convolution in as many spatial dimensions as ``x`` has; ``pad=None`` keeps the size at stride 1."""
        name = self._fresh("conv")
        inputs, *spatial = self.shapes[x]
        rank = len(spatial)
        pad = kernel // 2 if pad is None else pad
        per_group = inputs // groups
        std = math.sqrt(2 / (per_group * kernel**rank))
        weight = self.normal(out_channels, per_group, *[kernel] * rank, std=std)
        args = [x, self.constant(f"{name}_w", weight)]
        if bias:
            args.append(self.constant(f"{name}_b", self.normal(out_channels, std=0.2)))
        size = [(s + 2 * pad - kernel) // stride + 1 for s in spatial]
        return self.node(
            "Conv",
            args,
            [out_channels, *size],
            name,
            kernel_shape=[kernel] * rank,
            pads=[pad] * (2 * rank),
            strides=[stride] * rank,
            group=groups,
        )

    def conv_transpose(self, x: str, out_channels: int, kernel: int = 2, stride: int = 2, groups: int = 1) -> str:
        name = self._fresh("convtranspose")
        inputs, *spatial = self.shapes[x]
        rank = len(spatial)
        std = math.sqrt(2 * stride**rank / (inputs // groups * kernel**rank))
        weight = self.normal(inputs, out_channels // groups, *[kernel] * rank, std=std)
        bias = self.constant(f"{name}_b", self.normal(out_channels, std=0.2))
        size = [(s - 1) * stride + kernel for s in spatial]
        return self.node(
            "ConvTranspose",
            [x, self.constant(f"{name}_w", weight), bias],
            [out_channels, *size],
            name,
            kernel_shape=[kernel] * rank,
            strides=[stride] * rank,
            group=groups,
        )

    def batch_norm(self, x: str) -> str:
        name = self._fresh("bn")
        c = self.channels(x)
        # Gamma is normal around one, so that now and then one is small or negative.
        params = {
            "gamma": self.normal(c, mean=1.0, std=0.4),
            "beta": self.normal(c, std=0.3),
            "mean": self.normal(c, std=0.3),
            "var": self.uniform(0.5, 2.0, c),
        }
        names = [self.constant(f"{name}_{key}", value) for key, value in params.items()]
        return self.node("BatchNormalization", [x, *names], self.shapes[x], name, epsilon=1e-5)

    def conv_bn(self, x: str, out_channels: int, kernel: int = 3, bn: bool = True, **kwargs: int) -> str:
        """Convolution, then batch norm; with ``bn=False`` a convolution with bias."""
        y = self.conv(x, out_channels, kernel, bias=not bn, **kwargs)
        return self.batch_norm(y) if bn else y

    def gemm(
        self,
        x: str,
        out_features: int,
        trans_b: bool = True,
        alpha: float = 1.0,
        beta: float = 1.0,
        bias: tuple[int, ...] | None = (-1,),
        trans_a: bool = False,
    ) -> str:
        """Gemm on [N, features], or on [features, N] with ``trans_a``; -1 in ``bias`` stands for the output size."""
        name = self._fresh("gemm")
        (features,) = self.shapes[x]
        weight = self.normal(features, out_features, std=math.sqrt(2 / features) / alpha)
        args = [x, self.constant(f"{name}_w", np.ascontiguousarray(weight.T) if trans_b else weight)]
        if bias is not None:
            shape = [out_features if size == -1 else size for size in bias]
            args.append(self.constant(f"{name}_b", self.normal(*shape, std=0.2)))
        return self.node(
            "Gemm", args, [out_features], name, transA=int(trans_a), transB=int(trans_b), alpha=alpha, beta=beta
        )

    def matmul_add(self, x: str, out_features: int, bias_first: bool = False) -> str:
        """MatMul over the last axis, then an Add of a constant vector (as its first input with ``bias_first``)."""
        name = self._fresh("matmul")
        *leading, features = self.shapes[x]
        weight = self.normal(features, out_features, std=math.sqrt(2 / features))
        y = self.node("MatMul", [x, self.constant(f"{name}_w", weight)], [*leading, out_features], name)
        vector = self.constant(f"{name}_b", self.normal(out_features, std=0.2))
        return self.node("Add", [vector, y] if bias_first else [y, vector], self.shapes[y])

    def add(self, a: str, b: str) -> str:
        return self.node("Add", [a, b], self.shapes[a])

    def mul(self, a: str, b: str) -> str:
        return self.node("Mul", [a, b], self.shapes[a])

    def concat(self, *tensors: str) -> str:
        """Concatenate on the channel axis."""
        total = sum(self.channels(t) for t in tensors)
        return self.node("Concat", tensors, [total, *self.shapes[tensors[0]][1:]], axis=1)

    def flatten(self, x: str) -> str:
        return self.node("Flatten", [x], [math.prod(self.shapes[x])], axis=1)

    def global_average_pool(self, x: str) -> str:
        c, *spatial = self.shapes[x]
        return self.node("GlobalAveragePool", [x], [c, *[1] * len(spatial)])

    def _pool(self, op: str, x: str, kernel: int) -> str:
        c, *spatial = self.shapes[x]
        window = [kernel] * len(spatial)
        return self.node(op, [x], [c, *[s // kernel for s in spatial]], kernel_shape=window, strides=window)

    def max_pool(self, x: str, kernel: int = 2) -> str:
        return self._pool("MaxPool", x, kernel)

    def average_pool(self, x: str, kernel: int = 2) -> str:
        return self._pool("AveragePool", x, kernel)

    def head(self, x: str, out_features: int = 5) -> str:
        """Global average pool, flatten, gemm."""
        return self.gemm(self.flatten(self.global_average_pool(x)), out_features)

    def output(self, tensor: str, name: str = "y") -> None:
        """Make ``tensor`` a graph output called ``name``, also for the nodes that read it."""
        for node in self.nodes:
            for field in (node.input, node.output):
                field[:] = [name if t == tensor else t for t in field]
        self.shapes[name] = self.shapes.pop(tensor)
        self.outputs.append(name)

    def build(self) -> onnx.ModelProto:
        def info(name: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *self.shapes[name]])

        # onnx cannot infer the shapes of operators of other domains.
        foreign = [info(o) for n in self.nodes if n.domain for o in n.output if o in self.shapes]
        outputs = [info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, self.name, [info("x")], outputs, self.initializers, value_info=foreign)
        used = {node.domain for node in self.nodes}
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(name, version) for name, version in self.domains.items() if name in used]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=self.ir_version, producer_name="tests")
        onnx.checker.check_model(model, full_check=True)
        return model
