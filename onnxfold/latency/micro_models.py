"""Seconds of a layer at several widths, measured in micro-models.

A micro-model holds the layer once per pair of widths, each between neighbours that keep its layout: a 1x1 convolution
from a few channels to its inputs, and one from its outputs to a few channels. So onnxruntime computes a convolution in
the layout that it has inside a network. The time is that of the layer's own kernel in onnxruntime's profile.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfold.errors import OnnxFoldError
from onnxfold.graph.nodes import DEFAULT_DOMAINS, attr_int
from onnxfold.graph.run.profiling import profile_kernels
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory

#: Attributes of a convolution that decide its time beside its kernel; the number of groups follows from the kind.
_CONVOLUTION = ("strides", "pads", "dilations", "auto_pad")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
#: Larger weights are read from memory once per run, whose time is in proportion to their size: nothing to measure.
_LARGEST_WEIGHT = 1 << 24

Value = int | str | tuple[int, ...]


@dataclass(frozen=True, order=True)
class LayerShape:
    """A layer without its weights."""

    kind: str  # A plain convolution, one whose channels are filtered alone, a product with a constant matrix
    inputs: int  # channels before the fold
    outputs: int
    varies: tuple[bool, bool]  # whether a fold may change the inputs, and the outputs
    data: tuple[int, ...]  # of a convolution, batch and sizes of its input; of a product, the rows
    attributes: tuple[tuple[str, Value], ...] = ()  # other attributes of the operator
    elem_type: int = int(onnx.TensorProto.FLOAT)

    @property
    def key(self) -> str:
        """A text that equal shapes have in common."""
        return repr(tuple(asdict(self).values()))

    @property
    def is_tiled(self) -> bool:
        """Whether channels are computed in blocks: those of convolutions of images."""
        return len(self.data) == 3

    def macs(self, inputs: int, outputs: int) -> float:
        """Return about how many multiply-accumulates the layer does at other widths."""
        reads = 1 if self.kind == "depthwise" else inputs
        return float(prod(self.data) * prod(self.kernel) * reads * outputs)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Sizes of a convolution's filters, nothing for a product."""
        sizes = dict(self.attributes).get("kernel_shape", ())
        return sizes if isinstance(sizes, tuple) else ()


def shape_of(
    view: GraphView, node: NodeProto, name: str, data: tuple[int, ...], varies: tuple[bool, bool]
) -> LayerShape | None:
    """Return the shape of a layer with a weight that can be measured alone, by its input's; None for every other."""
    elem_type, weight = view.weight_type(name), view.weights[name].shape
    if prod(weight) > _LARGEST_WEIGHT or elem_type not in _FLOATS or node.domain not in DEFAULT_DOMAINS:
        return None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Conv":
        outputs, per_part, *kernel = weight
        inputs, parts, kind = data[1], int(attributes.get("group", 1)), "conv"
        if parts == inputs == outputs and per_part == 1 < parts:
            kind, varies = "depthwise", (varies[1], varies[1])
        elif parts > 1:
            return None
        values = {name: attributes[name] for name in _CONVOLUTION if name in attributes}
        kept = {n: v.decode() if isinstance(v, bytes) else tuple(map(int, v)) for n, v in values.items()}
        kept["kernel_shape"] = tuple(kernel)
        return LayerShape(kind, inputs, outputs, varies, (data[0], *data[2:]), tuple(sorted(kept.items())), elem_type)
    is_product = node.op_type in ("MatMul", "Gemm") and len(weight) == 2 and name == node.input[1]
    if not is_product or not data or attributes.get("transA"):
        return None
    inputs, outputs = (weight[axis] for axis in width_axes(node))
    transposed: tuple[tuple[str, Value], ...] = (("transB", 1),) if attributes.get("transB") else ()
    return LayerShape("matmul", inputs, outputs, varies, (prod(data[:-1]),), transposed, elem_type)


def width_axes(node: NodeProto) -> tuple[int, int]:
    """Return the axes of a layer's weight that hold its inputs and its outputs."""
    transposed = node.op_type == "Conv" or attr_int(node, "transB", 0)
    return (1, 0) if transposed else (0, 1)


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
    return sorted({min(-(-full // (part * block)) * block, full) for part in _PARTS})


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
    numbers = sum(prod(shape.data) * (a + b + 2 * _FEW) + a * b for a, b in pairs)
    once = sum(shape.macs(a, b) for a, b in pairs) / _MACS_PER_SECOND + 1e-5 * len(pairs)
    runs = int(np.clip(seconds / once, _FEWEST_RUNS, _MOST_RUNS))
    try:
        memory.require(8 * numbers, "measuring a layer", memory.SMALLER)
        kernels = profile_kernels(*_micro_model(shape, pairs), threads=threads, runs=runs)
    except OnnxFoldError:
        return ()
    times = [[kernel.typical for kernel in kernels if f"layer{i}." in kernel.name] for i in range(len(pairs))]
    return tuple((*pair, max(sum(own), 1e-7)) for pair, own in zip(pairs, times, strict=True)) if all(times) else ()


def _micro_model(shape: LayerShape, pairs: Sequence[tuple[int, int]]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model that holds a layer at every pair of inputs and outputs, and what goes in."""
    dtype, random = helper.tensor_dtype_to_np_dtype(shape.elem_type), np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []
    feeds: dict[str, Array] = {}

    def add_input(*dims: int) -> str:
        name = f"x{'_'.join(map(str, dims))}"
        if name not in feeds:
            feeds[name] = random.standard_normal(dims, np.float32).astype(dtype)
        return name

    def add_weight(*dims: int) -> str:
        values = random.standard_normal(dims, np.float32) / np.sqrt(max(prod(dims[1:]), 1))
        weights.append(numpy_helper.from_array(values.astype(dtype), f"w{len(weights)}"))
        return weights[-1].name

    def add_node(operator: str, name: str, inputs: list[str], **attributes: Any) -> str:
        # onnxruntime names what it changes after the node, or after its result: both tell the number.
        nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def add_convolution(i: int, inputs: int, outputs: int) -> str:
        """Add a convolution between two neighbours."""
        batch, *sizes = shape.data
        ones = (1,) * len(sizes)
        x = add_input(batch, inputs if inputs <= _IMAGE else _FEW, *sizes)
        if inputs > _IMAGE:
            x = add_node("Conv", f"before{i}.", [x, add_weight(inputs, _FEW, *ones)], kernel_shape=ones)
        depthwise = shape.kind == "depthwise"
        weight = add_weight(outputs, 1 if depthwise else inputs, *shape.kernel)
        attributes = dict(shape.attributes) | ({"group": outputs} if depthwise else {})
        y = add_node("Conv", f"layer{i}.", [x, weight, add_weight(outputs)], **attributes)
        y = add_node("Conv", f"after{i}.", [y, add_weight(_FEW, outputs, *ones)], kernel_shape=ones)
        return add_node("GlobalAveragePool", f"mean{i}.", [y])

    def add_product(i: int, inputs: int, outputs: int) -> str:
        x, transposed = add_input(shape.data[0], inputs), bool(dict(shape.attributes).get("transB"))
        weight = add_weight(outputs, inputs) if transposed else add_weight(inputs, outputs)
        return add_node("Gemm" if transposed else "MatMul", f"layer{i}.", [x, weight], **dict(shape.attributes))

    add_layer = add_product if shape.kind == "matmul" else add_convolution
    results = [add_layer(i, *pair) for i, pair in enumerate(pairs)]
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info(n, shape.elem_type, v.shape) for n, v in feeds.items()],
        [helper.make_tensor_value_info(name, shape.elem_type, None) for name in results], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), feeds
