"""MatMul with either operand constant, or none (attention)."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.operators import Lengths, Linear
from onnxfold.channels.registry import channel_rule

_MIXES = "it sums over this axis of two activations, where a merged channel would count only once"


def product(node: NodeContext) -> Linear:
    """Columns of a constant B make the last axis of the result, rows of a constant A the last but one."""
    a, b, y = node.input(0), node.input(1), node.output()
    products = (Lengths(y), Lengths(a, -1))
    weight = b if node.is_weight(b) else a if node.is_weight(a) else ""
    if not weight or node.rank(weight) < 2:
        return Linear(products, weight)
    axis = -1 if weight == b else -2
    return Linear(products, weight, node.axis(weight, axis), channel_axis=axis)


@channel_rule("MatMul", mixes=_MIXES, computes=product)
def matmul(node: NodeContext) -> None:
    """Follow A (..., M, K), B (..., K, N), Y (..., M, N); leading axes broadcast."""
    a, b, y = node.input(0), node.input(1), node.output()
    if node.rank(a) < 2 or node.rank(b) < 2:
        raise CannotDeclareError("vector operands of MatMul are not followed")
    rows, columns = node.axis(y, -2), node.axis(y, -1)
    if node.is_weight(b):
        node.use(node.axis(b, -2), Role.CONSUMER, node.axis(a, -1))
        node.use(node.axis(b, -1), Role.PRODUCER, columns)
        node.rotatable(node.axis(a, -1))
        node.rotatable(columns)
        node.link(node.axis(a, -2), rows)
    elif node.is_weight(a):
        node.use(node.axis(a, -1), Role.CONSUMER, node.axis(b, -2))
        node.use(node.axis(a, -2), Role.PRODUCER, rows)
        node.link(node.axis(b, -1), columns)
    else:
        node.link(node.axis(a, -2), rows)
        node.link(node.axis(b, -1), columns)
        node.rotatable_in_heads(node.axis(b, -1))
        node.rotatable_in_heads(columns)
        for summed in (node.axis(a, -1), node.axis(b, -2)):  # said here, because a and b may be one tensor
            node.block(summed, _MIXES)
        for axis in range(node.rank(y) - 2):  # heads: the mean of products is not the product of means
            node.keep_apart(Axis(y, axis))
    for operand in (a, b):
        _link_leading(node, operand, y)


def _link_leading(node: NodeContext, operand: str, result: str) -> None:
    """Batch axes: every index is a matrix of its own, so equal positions belong together."""
    rank, out_rank = node.rank(operand), node.rank(result)
    for i in range(3, rank + 1):
        a, b = Axis(operand, rank - i), Axis(result, out_rank - i)
        if node.width(a) != 1:
            if node.is_weight(operand):
                node.use(a, Role.PRODUCER, b)
            else:
                node.link(a, b)
