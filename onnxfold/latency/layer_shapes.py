"""Shapes of layers: their operator and sizes, which decide how long they take, and the widths that may change."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod

import onnx
from onnx import NodeProto

from onnxfold.channels.layers import linear
from onnxfold.channels.operators import Linear
from onnxfold.graph.view import GraphView

#: Attributes of a convolution that decide its time; the number of groups follows from the kind.
_CONVOLUTION = ("kernel_shape", "strides", "pads", "dilations", "auto_pad")
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
    def is_convolution(self) -> bool:
        """Whether channels lie in planes."""
        return self.kind != "matmul"

    @property
    def is_tiled(self) -> bool:
        """Whether channels are computed in blocks: those of convolutions of images."""
        return self.is_convolution and len(self.data) == 3

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
    view: GraphView, node: NodeProto, sizes: Mapping[str, tuple[int, ...] | None], varies: tuple[bool, bool]
) -> LayerShape | None:
    """Return the shape of a layer that can be measured alone; None for every other node."""
    operator = linear(view, node)
    if operator is None or not operator.weight or view.weight_size(operator.weight) > _LARGEST_WEIGHT:
        return None
    elem_type = view.weight_type(operator.weight)
    data = sizes.get(node.input[0])
    if data is None or elem_type not in _FLOATS or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Conv":
        return _convolution(view, node, operator, data, varies, elem_type)
    if node.op_type in ("MatMul", "Gemm"):
        return _product(view, node, operator, data, varies, elem_type)
    return None


def width_axes(node: NodeProto) -> tuple[int, int]:
    """Return the axes of a layer's weight that hold its inputs and its outputs."""
    transposed = node.op_type == "Conv" or any(a.name == "transB" and a.i for a in node.attribute)
    return (1, 0) if transposed else (0, 1)


def _convolution(
    view: GraphView, node: NodeProto, operator: Linear, data: tuple[int, ...], varies: tuple[bool, bool], elem_type: int
) -> LayerShape | None:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    outputs, per_part, *kernel = view.weights[operator.weight].shape
    inputs, parts = data[1], int(attributes.get("group", 1))
    if parts == 1:
        kind = "conv"
    elif parts == inputs == outputs and per_part == 1:
        kind, varies = "depthwise", (varies[1], varies[1])
    else:
        return None
    kept: dict[str, Value] = {"kernel_shape": tuple(kernel)}
    for name in _CONVOLUTION[1:]:
        if name in attributes:
            value = attributes[name]
            kept[name] = value.decode() if isinstance(value, bytes) else tuple(int(v) for v in value)
    return LayerShape(kind, inputs, outputs, varies, (data[0], *data[2:]), tuple(sorted(kept.items())), elem_type)


def _product(
    view: GraphView, node: NodeProto, operator: Linear, data: tuple[int, ...], varies: tuple[bool, bool], elem_type: int
) -> LayerShape | None:
    shape = view.weights[operator.weight].shape
    if len(shape) != 2 or operator.weight != node.input[1] or not data:
        return None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("transA"):
        return None
    inputs, outputs = (shape[axis] for axis in width_axes(node))
    kept: tuple[tuple[str, Value], ...] = (("transB", 1),) if attributes.get("transB") else ()
    return LayerShape("matmul", inputs, outputs, varies, (prod(data[:-1]),), kept, elem_type)
