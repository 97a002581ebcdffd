"""Operators of onnxruntime's optimiser (domain com.microsoft)."""

from dataclasses import replace

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Lengths, Linear, Role
from onnxfold.channels.registry import Result, channel_rule
from onnxfold.channels.rules.convolutions import MIXES, conv, convolution
from onnxfold.channels.rules.products import gemm, general_product, matmul, product

_DOMAIN = "com.microsoft"
_TRANSPOSES = ("transA", "transB", "transBatchA", "transBatchB")


def fused_convolution(node: NodeContext) -> Linear:
    """A convolution, with a summand or an activation inside."""
    return _with_more(convolution(node))


def fused_general_product(node: NodeContext) -> Linear:
    """A Gemm, with an activation inside."""
    return _with_more(general_product(node))


def _with_more(operator: Linear) -> Linear:
    return replace(operator, is_plain=False, bias=replace(operator.bias, takes_constants=False))


def scaled_product(node: NodeContext) -> Linear:
    """A product times a number; the axes of a transposed weight are not followed."""
    if not any(node.integer(name, 0) for name in _TRANSPOSES):
        return product(node)
    turned = node.integer("transA", 0)
    depth = Lengths(node.input(0), -2, -1) if turned else Lengths(node.input(0), -1)
    return Linear((Lengths(node.output()), depth), product(node).weight)


@channel_rule("FusedConv", domain=_DOMAIN, mixes=MIXES, computes=fused_convolution)
def fused_conv(node: NodeContext) -> None:
    """Conv, an optional summand as input 3, and an activation; what Conv mixes stays, also where the summand is X."""
    conv(node)
    if node.input(3):
        for axis in (0, 1):
            node.link(node.axis(node.input(3), axis), node.axis(node.output(), axis))
        for tensor in (node.input(0), node.input(3), node.output()):
            for axis in range(2, node.rank(tensor)):
                node.block(node.axis(tensor, axis), MIXES)


@channel_rule("FusedGemm", domain=_DOMAIN, mixes="a matrix product sums over this axis", computes=fused_general_product)
def fused_gemm(node: NodeContext) -> None:
    """Gemm and an activation."""
    gemm(node)


@channel_rule("FusedMatMul", domain=_DOMAIN, mixes="it sums over this axis of two activations", computes=scaled_product)
def fused_matmul(node: NodeContext) -> None:
    """MatMul with a scale; transposed operands are not followed."""
    if any(node.integer(name, 0) for name in _TRANSPOSES):
        raise CannotDeclareError(
            "transposed operands of FusedMatMul are not followed; fold before onnxruntime's optimiser"
        )
    matmul(node)


@channel_rule("BiasGelu", "FastGelu", "QuickGelu", domain=_DOMAIN)
@channel_rule("Gelu", domain=_DOMAIN, result=Result.IN_PLACE)
def gelu(node: NodeContext) -> None:
    """Elementwise, some with a bias along the last axis."""
    node.link_all(node.input(0), node.output())
    if node.input(1):
        node.link_broadcast(node.input(1), node.output(), Role.BIAS)
