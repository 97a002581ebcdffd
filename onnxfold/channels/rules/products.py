"""Products with matrices: Gemm, MatMul, Einsum, and those of onnxruntime with few bits."""

from onnxfold.channels.context import CannotDeclareError, NodeContext, channel_rule
from onnxfold.channels.declarations import Axis, BiasInput, Lengths, Linear, Role
from onnxfold.channels.rules.convolutions import with_activation

_SUMS_OVER = "a matrix product sums over this axis"


def general_product(node: NodeContext) -> Linear:
    """A bias is a vector along the columns of the result, so only those of a constant B have one."""
    a, b, c, y = node.input(0), node.input(1), node.input(2), node.output()
    turned_a, turned_b = (node.integer(name, 0) for name in ("transA", "transB"))
    products = (Lengths(y), Lengths(a, -2, -1) if turned_a else Lengths(a, -1))
    factor, is_unscaled = node.number("beta", 1.0), node.number("alpha", 1.0) == 1.0
    if node.is_weight(b):
        return Linear(products, b, Axis(b, 0 if turned_b else 1), bias=BiasInput(2, factor, is_unscaled))
    if node.is_weight(a):
        bias = BiasInput(takes_constants=is_unscaled)
        return Linear(products, a, Axis(a, 1 if turned_a else 0), channel_axis=0, bias=bias, is_plain=not c)
    return Linear(products)


@channel_rule("Gemm", mixes=_SUMS_OVER, computes=general_product)
@channel_rule(
    "FusedGemm", domain="com.microsoft", mixes=_SUMS_OVER, computes=lambda node: with_activation(general_product(node))
)
def gemm(node: NodeContext) -> None:
    """With A' of shape (M, K) and B' (K, N), the constant one consumes K and produces its other axis."""
    a, b, c, y = node.input(0), node.input(1), node.input(2), node.output()
    result = [node.axis(y, 0), node.axis(y, 1)]
    if not (node.is_weight(a) or node.is_weight(b)):
        raise CannotDeclareError("it multiplies two activations: a merged channel would be counted once, not twice")
    turns = ((tensor, node.integer(name, 0)) for tensor, name in ((a, "transA"), (b, "transB")))
    left, right = ([node.axis(tensor, i) for i in ((1, 0) if turned else (0, 1))] for tensor, turned in turns)
    _multiply(node, left, right, result)
    if node.is_weight(b) and (not c or node.shape(c)[-1:] == node.shape(y)[-1:]):
        node.rotatable(result[1])
    if c:
        node.link_broadcast(c, y, Role.BIAS)


def _multiply(node: NodeContext, left: list[Axis], right: list[Axis], result: list[Axis]) -> None:
    """Of A with the axes (M, K) and B with (K, N), the constant one consumes K and produces its other axis."""
    (m, k), (also_k, n), (rows, columns) = left, right, result
    if node.is_weight(n.tensor):
        node.use(also_k, Role.CONSUMER, k)
        node.use(n, Role.PRODUCER, columns)
        node.link(m, rows)
        node.rotatable(k)
    else:
        node.use(k, Role.CONSUMER, also_k)
        node.use(m, Role.PRODUCER, rows)
        node.link(n, columns)


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
    left, right, result = ([node.axis(tensor, -2), node.axis(tensor, -1)] for tensor in (a, b, y))
    if node.is_weight(a) or node.is_weight(b):
        _multiply(node, left, right, result)
        if node.is_weight(b):
            node.rotatable(result[1])
    else:
        node.link(left[0], result[0])
        node.link(right[1], result[1])
        for summed in (left[1], right[0]):  # said here, because a and b may be one tensor
            node.block(summed, _MIXES)
        for axis in range(node.rank(y) - 2):  # heads: the mean of products is not the product of means
            node.keep_apart(Axis(y, axis))
    for operand in (a, b):
        _link_leading(node, operand, y)


_TRANSPOSES = ("transA", "transB", "transBatchA", "transBatchB")


def scaled_product(node: NodeContext) -> Linear:
    """A product times a number; the axes of a transposed weight are not followed."""
    if not any(node.integer(name, 0) for name in _TRANSPOSES):
        return product(node)
    turned = node.integer("transA", 0)
    depth = Lengths(node.input(0), -2, -1) if turned else Lengths(node.input(0), -1)
    return Linear((Lengths(node.output()), depth), product(node).weight)


@channel_rule(
    "FusedMatMul", domain="com.microsoft", mixes="it sums over this axis of two activations", computes=scaled_product
)
def fused_matmul(node: NodeContext) -> None:
    """MatMul with a scale; transposed operands are not followed."""
    if any(node.integer(name, 0) for name in _TRANSPOSES):
        raise CannotDeclareError(
            "transposed operands of FusedMatMul are not followed; fold before onnxruntime's optimiser"
        )
    matmul(node)


def _link_leading(node: NodeContext, operand: str, result: str) -> None:
    """Batch axes: every index is a matrix of its own, so equal positions belong together."""
    rank, out_rank = node.rank(operand), node.rank(result)
    for i in range(3, rank + 1):
        a, b = Axis(operand, rank - i), Axis(result, out_rank - i)
        if node.width(a) != 1:
            node.hold(a, Role.PRODUCER, b)


_SUMS = "it sums over this index of two activations, where a merged channel would count only once"


@channel_rule("Einsum", mixes=_SUMS)
def einsum(node: NodeContext) -> None:
    """Follow each index letter from the operands to the result.

    A letter of the result passes through, and is produced by a constant operand that has it. A letter
    that is summed over is consumed where exactly one of two operands is constant.
    """
    equation = node.text("equation", "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) > 2 or any(len(set(t)) != len(t) for t in [*terms, result]):
        raise CannotDeclareError(f"the equation '{equation}' is not followed: only plain products of two operands are")
    operands = list(zip(node.inputs, terms, strict=True))
    for tensor, term in operands:
        for axis, letter in enumerate(term):
            if letter in result:
                node.hold(Axis(tensor, axis), Role.PRODUCER, Axis(node.output(), result.index(letter)))
    if len(operands) == 2 and sum(node.is_weight(t) for t, _ in operands) == 1:
        (weight, weight_term), (other, other_term) = sorted(operands, key=lambda o: not node.is_weight(o[0]))
        for axis, letter in enumerate(weight_term):
            if letter in other_term and letter not in result:
                node.use(Axis(weight, axis), Role.CONSUMER, Axis(other, other_term.index(letter)))
    elif not any(node.is_weight(t) for t, _ in operands):
        for tensor, term in operands:  # said here, because both operands may be one tensor
            for axis in (i for i, letter in enumerate(term) if letter not in result):
                node.block(Axis(tensor, axis), _SUMS)


@channel_rule("MatMulNBits", domain="com.microsoft")
def matmul_n_bits(node: NodeContext) -> None:
    """Products that are not folded as numbers: in a body, with an order of columns, or packed for a processor."""
    raise CannotDeclareError(
        f"the weight is quantised in blocks of {node.integer('block_size', 0)}: fold the float model, then quantise it"
    )
