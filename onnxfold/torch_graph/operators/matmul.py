"""Matrix products."""

import torch
from torch import Tensor

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator


@operator("Gemm")
def gemm(node: TorchNode) -> Operation:
    """``alpha A B + beta C`` of matrices that may be transposed."""
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    transposed_a, transposed_b = node.integer("transA", 0), node.integer("transB", 0)

    def run(a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
        y = (a.t() if transposed_a else a) @ (b.t() if transposed_b else b)
        y = y if alpha == 1.0 else alpha * y
        return y if c is None else y + (c if beta == 1.0 else beta * c)

    return run


@operator("MatMul")
def matmul(node: TorchNode) -> Operation:
    """Product over the last two axes."""
    return torch.matmul


@operator("FusedMatMul", domain="com.microsoft")
def fused_matmul(node: TorchNode) -> Operation:
    """``alpha`` times the product of matrices that may be transposed."""
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        raise node.unsupported("it transposes batch axes")
    alpha, transposed_a, transposed_b = node.number("alpha", 1.0), node.integer("transA", 0), node.integer("transB", 0)

    def run(a: Tensor, b: Tensor) -> Tensor:
        return alpha * ((a.mT if transposed_a else a) @ (b.mT if transposed_b else b))

    return run


@operator("Einsum")
def einsum(node: TorchNode) -> Operation:
    """Einstein's summation."""
    equation = node.text("equation", "").replace(" ", "")

    def run(*operands: Tensor) -> Tensor:
        return torch.einsum(equation, *operands)

    return run
