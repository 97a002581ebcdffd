"""Seconds of a layer at several widths, measured in micro-models.

A micro-model holds the layer once per pair of widths, each between neighbours that keep its layout: a 1x1 convolution
from a few channels to its inputs, and one from its outputs to a few channels. So onnxruntime computes a convolution in
the layout that it has inside a network. The time is that of the layer's own kernel in onnxruntime's profile.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfold.errors import OnnxFoldError
from onnxfold.graph.run.profiling import profile_kernels
from onnxfold.graph.tensors import Array
from onnxfold.latency.layer_shapes import LayerShape, Value
from onnxfold.machine import memory

#: Inputs, outputs, seconds.
Sample = tuple[int, int, float]
#: Takes a layer, pairs of widths and about how many seconds it may take; returns what was measured.
Measure = Callable[[LayerShape, Sequence[tuple[int, int]], float], tuple[Sample, ...]]

#: Channels of the neighbours, and inputs from which on a layer has one before it: fewer are an image's.
_FEW = 8
_IMAGE = 4
_FEWEST_RUNS, _MOST_RUNS = 7, 40
#: A rough guess, for the number of runs.
_MACS_PER_SECOND = 2e10
#: Parts of the full width that are measured.
_PARTS = (4, 2, 1)


def widths_of(full: int, block: int) -> list[int]:
    """Return the widths that are measured: the full one, and multiples of the block near a half and a quarter of it."""
    widths = {min(-(-full // (part * block)) * block, full) for part in _PARTS}
    return sorted(widths)


def pairs_of(shape: LayerShape, block: int) -> list[tuple[int, int]]:
    """Return the pairs of inputs and outputs at which a layer is measured, at most 3 x 3."""
    step = block if shape.is_tiled else 1
    inputs = widths_of(shape.inputs, step) if shape.varies[0] else [shape.inputs]
    outputs = widths_of(shape.outputs, step) if shape.varies[1] else [shape.outputs]
    return [(width, width) for width in outputs] if shape.kind == "depthwise" else list(product(inputs, outputs))


def measure_shape(
    shape: LayerShape, pairs: Sequence[tuple[int, int]], seconds: float, *, threads: int
) -> tuple[Sample, ...]:
    """Return the seconds of a layer at pairs of inputs and outputs; nothing where onnxruntime does not compute it."""
    planes = sum(prod(shape.data) * (a + b + 2 * _FEW) for a, b in pairs) * 8
    weights = sum(a * b for a, b in pairs) * 8
    once = sum(shape.macs(a, b) for a, b in pairs) / _MACS_PER_SECOND + 1e-5 * len(pairs)
    runs = int(np.clip(seconds / once, _FEWEST_RUNS, _MOST_RUNS))
    try:
        memory.require(planes + weights, "measuring a layer", memory.SMALLER)
        model, feeds = _model(shape, pairs)
        kernels = profile_kernels(model, feeds, threads=threads, runs=runs)
    except OnnxFoldError:
        return ()
    measured = []
    for i, (inputs, outputs) in enumerate(pairs):
        own = [kernel.typical for kernel in kernels if f"layer{i}." in kernel.name]
        if not own:
            return ()
        measured.append((inputs, outputs, max(sum(own), 1e-7)))
    return tuple(measured)


def _model(shape: LayerShape, pairs: Sequence[tuple[int, int]]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    graph = _Graph(shape)
    for i, (inputs, outputs) in enumerate(pairs):
        if shape.is_convolution:
            graph.convolution(i, inputs, outputs)
        else:
            graph.matrix(i, inputs, outputs)
    return graph.build()


class _Graph:
    """The nodes and weights of a micro-model."""

    def __init__(self, shape: LayerShape) -> None:
        self._shape = shape
        self._dtype = helper.tensor_dtype_to_np_dtype(shape.elem_type)
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[TensorProto] = []
        self._feeds: dict[str, Array] = {}
        self._outputs: list[str] = []

    def convolution(self, i: int, inputs: int, outputs: int) -> None:
        """Add a convolution between two neighbours."""
        batch, *sizes = self._shape.data
        ones = (1,) * len(sizes)
        plain: dict[str, Value] = {"kernel_shape": ones}
        few = inputs if inputs <= _IMAGE else _FEW
        x = self._input((batch, few, *sizes))
        if inputs > _IMAGE:
            x = self._node("Conv", f"before{i}.", [x, self._weight((inputs, few, *ones))], plain)
        depthwise = self._shape.kind == "depthwise"
        weight = self._weight((outputs, 1 if depthwise else inputs, *self._shape.kernel))
        attributes = dict(self._shape.attributes) | ({"group": outputs} if depthwise else {})
        y = self._node("Conv", f"layer{i}.", [x, weight, self._weight((outputs,))], attributes)
        y = self._node("Conv", f"after{i}.", [y, self._weight((_FEW, outputs, *ones))], plain)
        self._outputs.append(self._node("GlobalAveragePool", f"mean{i}.", [y], {}))

    def matrix(self, i: int, inputs: int, outputs: int) -> None:
        """Add a product."""
        attributes = dict(self._shape.attributes)
        transposed = bool(attributes.get("transB"))
        x = self._input((self._shape.data[0], inputs))
        weight = self._weight((outputs, inputs) if transposed else (inputs, outputs))
        operator = "Gemm" if transposed else "MatMul"
        self._outputs.append(self._node(operator, f"layer{i}.", [x, weight], attributes))

    def build(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """Return the model and its inputs."""
        infos = [helper.make_tensor_value_info(n, self._shape.elem_type, v.shape) for n, v in self._feeds.items()]
        results = [helper.make_tensor_value_info(name, self._shape.elem_type, None) for name in self._outputs]
        graph = helper.make_graph(self._nodes, "layer", infos, results, self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self._feeds

    def _input(self, dims: tuple[int, ...]) -> str:
        name = f"x{'_'.join(map(str, dims))}"
        if name not in self._feeds:
            self._feeds[name] = self._random.standard_normal(dims, np.float32).astype(self._dtype)
        return name

    def _weight(self, dims: tuple[int, ...]) -> str:
        values = self._random.standard_normal(dims, np.float32) / np.sqrt(max(prod(dims[1:]), 1))
        self._weights.append(numpy_helper.from_array(values.astype(self._dtype), f"w{len(self._weights)}"))
        return self._weights[-1].name

    def _node(self, operator: str, name: str, inputs: list[str], attributes: Mapping[str, Value]) -> str:
        # onnxruntime names what it changes after the node, or after its result: both tell the number.
        options: dict[str, Any] = dict(attributes)
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **options))
        return name
