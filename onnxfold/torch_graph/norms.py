"""Scales and biases of normalisations: the weights that multiply and shift what was divided by its deviation."""

from collections.abc import Iterator

from onnx import NodeProto

from onnxfold.graph.patterns import behind
from onnxfold.graph.tensors import is_float
from onnxfold.graph.view import GraphView

#: Inputs of operators that hold them.
SCALES_AND_BIASES = {
    "BatchNormalization": (1, 2), "InstanceNormalization": (1, 2), "LayerNormalization": (1, 2),
    "GroupNormalization": (1, 2), "RMSNormalization": (1,), "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2, 3), "SkipSimplifiedLayerNormalization": (2,),
}  # fmt: skip
#: Roots by which a norm that exporters write out divides.
_ROOTS = ("Sqrt", "Reciprocal", "Rsqrt")


def norm_weights(view: GraphView) -> list[str]:
    """Return the scales and biases of all norms of a graph, each once, in the order of their nodes.

    A norm may also be written out: a row of weights multiplies what was divided by a root.
    """
    return list(dict.fromkeys(name for node in view.nodes for name in _weights(view, node) if holds_floats(view, name)))


def _weights(view: GraphView, node: NodeProto) -> Iterator[str]:
    yield from (node.input[i] for i in SCALES_AND_BIASES.get(node.op_type, ()) if i < len(node.input))
    if node.op_type == "Mul":
        for scale, other in (node.input, node.input[::-1]):
            if view.is_weight(scale) and len(view.weights[scale].shape) == 1 and _was_divided(view, other):
                yield scale


def _was_divided(view: GraphView, tensor: str) -> bool:
    """Whether a tensor is a quotient by a root."""
    node = view.producer(behind(view, tensor, ["Cast"]))
    if node is None or node.op_type not in ("Div", "Mul"):
        return False
    operands = (view.producer(behind(view, name, ["Cast"])) for name in node.input)
    return any(other is not None and other.op_type in _ROOTS for other in operands)


def holds_floats(view: GraphView, name: str) -> bool:
    """Whether a tensor is a weight of more than one float."""
    return bool(name) and view.is_weight(name) and is_float(view.weight_type(name)) and view.weight_size(name) > 1
