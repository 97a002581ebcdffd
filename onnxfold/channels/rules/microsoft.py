"""Operators of onnxruntime's optimiser (domain com.microsoft)."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Role
from onnxfold.channels.registry import channel_rule
from onnxfold.channels.rules.conv import conv
from onnxfold.channels.rules.gemm import gemm
from onnxfold.channels.rules.matmul import matmul

_DOMAIN = "com.microsoft"


@channel_rule("FusedConv", domain=_DOMAIN, mixes="a convolution mixes neighbouring positions of its spatial axes")
def fused_conv(node: NodeContext) -> None:
    """Conv, an optional summand as input 3, and an activation; what Conv mixes stays, also where the summand is X."""
    conv(node)
    if node.input(3):
        for axis in (0, 1):
            node.link(node.axis(node.input(3), axis), node.axis(node.output(), axis))
        for tensor in (node.input(0), node.input(3), node.output()):
            for axis in range(2, node.rank(tensor)):
                node.block(node.axis(tensor, axis), "a convolution mixes neighbouring positions of its spatial axes")


@channel_rule("FusedGemm", domain=_DOMAIN, mixes="a matrix product sums over this axis")
def fused_gemm(node: NodeContext) -> None:
    """Gemm and an activation."""
    gemm(node)


@channel_rule("FusedMatMul", domain=_DOMAIN, mixes="it sums over this axis of two activations")
def fused_matmul(node: NodeContext) -> None:
    """MatMul with a scale; transposed operands are not followed."""
    if any(node.integer(name, 0) for name in ("transA", "transB", "transBatchA", "transBatchB")):
        raise CannotDeclareError(
            "transposed operands of FusedMatMul are not followed; fold before onnxruntime's optimiser"
        )
    matmul(node)


@channel_rule("BiasGelu", "FastGelu", "Gelu", "QuickGelu", domain=_DOMAIN)
def gelu(node: NodeContext) -> None:
    """Elementwise, some with a bias along the last axis."""
    node.link_all(node.input(0), node.output())
    if node.input(1):
        node.link_broadcast(node.input(1), node.output(), Role.BIAS)
