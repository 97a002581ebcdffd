"""Gemm: Y = alpha * A' @ B' + beta * C, with either operand constant."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.operators import Lengths, Linear
from onnxfold.channels.registry import channel_rule


def general_product(node: NodeContext) -> Linear:
    """A bias is a vector along the columns of the result, so only those of a constant B have one."""
    a, b, c, y = node.input(0), node.input(1), node.input(2), node.output()
    turned_a, turned_b = (node.integer(name, 0) for name in ("transA", "transB"))
    products = (Lengths(y), Lengths(a, -2, -1) if turned_a else Lengths(a, -1))
    if node.is_weight(b):
        beta = node.number("beta", 1.0)
        return Linear(products, b, Axis(b, 0 if turned_b else 1), bias_input=2, bias_factor=beta)
    if node.is_weight(a):
        return Linear(products, a, Axis(a, 1 if turned_a else 0), channel_axis=0, is_plain=not c)
    return Linear(products)


@channel_rule("Gemm", mixes="a matrix product sums over this axis", computes=general_product)
def gemm(node: NodeContext) -> None:
    """With A' of shape (M, K) and B' (K, N), the constant one consumes K and produces its other axis."""
    a, b, c, y = node.input(0), node.input(1), node.input(2), node.output()
    m, k_a = (1, 0) if node.integer("transA", 0) else (0, 1)
    k_b, n = (1, 0) if node.integer("transB", 0) else (0, 1)
    rows_out, columns_out = node.axis(y, 0), node.axis(y, 1)
    if node.is_weight(b):
        node.use(node.axis(b, k_b), Role.CONSUMER, node.axis(a, k_a))
        node.use(node.axis(b, n), Role.PRODUCER, columns_out)
        node.link(node.axis(a, m), rows_out)
        node.rotatable(node.axis(a, k_a))
        if not c or node.shape(c)[-1:] == node.shape(y)[-1:]:
            node.rotatable(columns_out)
    elif node.is_weight(a):
        node.use(node.axis(a, k_a), Role.CONSUMER, node.axis(b, k_b))
        node.use(node.axis(a, m), Role.PRODUCER, rows_out)
        node.link(node.axis(b, n), columns_out)
    else:
        raise CannotDeclareError("it multiplies two activations: a merged channel would be counted once, not twice")
    if c:
        node.link_broadcast(c, y, Role.BIAS)
