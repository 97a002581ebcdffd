"""Channels of inputs that a file leaves free, and the first layers fix."""

from onnx import NodeProto

from onnxfold.graph.nodes import attr_int
from onnxfold.graph.tensors import Shape
from onnxfold.graph.view import GraphView

_LEAST_RANK = 3
#: Nodes that read one parameter for each channel, along the second axis.
_PER_CHANNEL = frozenset({"InstanceNormalization", "BatchNormalization"})


def fixed_channels(view: GraphView) -> dict[str, Shape]:
    """Return the shapes of inputs whose second axis is free, with the size that weights of a first layer ask for."""
    fixed: dict[str, Shape] = {}
    for info in view.graph.input:
        axes = info.type.tensor_type.shape.dim
        if len(axes) < _LEAST_RANK or axes[1].HasField("dim_value"):
            continue
        layers = view.consumers(info.name)
        sizes = {size for node in layers if (size := _channels(view, node, info.name)) is not None}
        if len(sizes) == 1:
            fixed[info.name] = (None, *sizes)
    return fixed


def _channels(view: GraphView, node: NodeProto, name: str) -> int | None:
    """Return how many channels a layer reads, None of other nodes."""
    if len(node.input) < 2 or node.input[0] != name or not view.is_weight(node.input[1]):
        return None
    sizes = view.weights[node.input[1]].shape
    if node.op_type in _PER_CHANNEL:
        return sizes[0]
    return sizes[1] * attr_int(node, "group", 1) if node.op_type == "Conv" else None
