"""Quantised parts of a graph: constants behind DequantizeLinear, and operators that compute on integers."""

from collections.abc import Iterable

from onnx import NodeProto

#: Products of activations with matrices of integers.
_PRODUCTS = frozenset({"MatMulInteger", "DynamicQuantizeMatMul", "MatMulNBits", "QAttention"})
#: Operators of a graph that is quantised, besides those whose names begin with QLinear.
_QUANTIZED = _PRODUCTS | {
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulIntegerToFloat", "QGemm",
}  # fmt: skip
_PAIR = ("QuantizeLinear", "DequantizeLinear")


def is_quantized(node: NodeProto) -> bool:
    """Whether a node quantises, dequantises, or computes on what is quantised."""
    return node.op_type in _QUANTIZED or node.op_type.startswith("QLinear")


def multiplies_integers(node: NodeProto) -> bool:
    """Whether a node multiplies an activation with a matrix of integers, which no rule declares as a weight."""
    return node.op_type in _PRODUCTS


def dequantized_tensors(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the tensors whose integers stand for floats.

    They are what a DequantizeLinear dequantises, of looked-up rows the table, and factors of integer products.
    """
    nodes = list(nodes)
    tensors = {node.input[0] for node in nodes if node.op_type == "DequantizeLinear" and node.input}
    for node in nodes:
        if node.op_type in ("MatMulInteger", "ConvInteger"):
            tensors.update(node.input[:2])
        elif node.op_type == "Gather" and node.output[0] in tensors:
            tensors.add(node.input[0])
    return tensors


def scales(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the tensors that are scales of quantised ones and nothing else.

    They say how numbers are stored, and are no weights of the model. QuantizeLinear and DequantizeLinear read them, and
    of an integer product the Mul with the scale that its activation was just given.
    """
    nodes = list(nodes)
    activation_scales = {node.output[1] for node in nodes if node.op_type == "DynamicQuantizeLinear"}
    used_as_scale: set[str] = set()
    used_otherwise: set[str] = set()
    for node in nodes:
        joins = node.op_type == "Mul" and not activation_scales.isdisjoint(node.input)
        for i, name in enumerate(node.input):
            is_scale = joins or (node.op_type in _PAIR and i == 1)
            (used_as_scale if is_scale else used_otherwise).add(name)
    return used_as_scale - used_otherwise
