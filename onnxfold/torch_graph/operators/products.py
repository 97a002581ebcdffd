"""Products of matrices, and convolutions over any number of spatial axes."""

import torch
from torch import Tensor

from onnxfold.torch_graph.operators.pooling import Windows, pad_spatial
from onnxfold.torch_graph.registry import Operation, TorchNode, operations, operator

_CONVOLVE = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSE = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


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


operations({
    "MatMul": torch.matmul,
    "Einsum": lambda *operands, equation="": torch.einsum(equation.replace(" ", ""), *operands),
})  # fmt: skip


@operator("FusedMatMul", domain="com.microsoft")
def fused_matmul(node: TorchNode) -> Operation:
    """``alpha`` times the product of matrices that may be transposed."""
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        raise node.unsupported("it transposes batch axes")
    alpha, transposed_a, transposed_b = node.number("alpha", 1.0), node.integer("transA", 0), node.integer("transB", 0)
    return lambda a, b: alpha * ((a.mT if transposed_a else a) @ (b.mT if transposed_b else b))


@operator("Conv")
def convolution(node: TorchNode) -> Operation:
    """Cross-correlation with zero padding."""
    groups = node.integer("group", 1)

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rank = x.ndim - 2
        if rank not in _CONVOLVE:
            raise node.unsupported(f"a convolution over {rank} axes; torch has up to 3")
        windows = Windows(node, rank)
        before, after = windows.pads(x.shape[2:], weight.shape[2:])
        if before == after:
            padding = before
        else:
            x, padding = pad_spatial(x, before, after, 0.0), [0] * rank
        if x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last):
            # A weight in the memory format of the images: otherwise torch converts the images at every layer.
            weight = weight.contiguous(memory_format=torch.channels_last)
        strides, dilations = windows.strides, windows.dilations
        if rank == 2 and x.shape[3] == weight.shape[3] == 1 and not padding[1]:
            # Along one axis the gradient of a long window over one channel takes a fifth of the time.
            line, kernel = x[..., 0], weight[..., 0]
            return torch.conv1d(line, kernel, bias, strides[:1], padding[:1], dilations[:1], groups)[..., None]
        if 1 < groups == x.shape[1] and max(strides) > 1 and x.dtype == torch.bfloat16:
            # The gradient of a depthwise convolution with strides takes 5 to 40 times as long in bfloat16.
            with torch.autocast("cpu", enabled=False):
                wide = None if bias is None else bias.float()
                y = _CONVOLVE[rank](x.float(), weight.float(), wide, strides, padding, dilations, groups)
                return y.to(x.dtype)
        return _CONVOLVE[rank](x, weight, bias, strides, padding, dilations, groups)

    return run


@operator("ConvTranspose")
def convolution_transpose(node: TorchNode) -> Operation:
    """Gradient of a convolution with respect to its input."""
    groups, extra, wanted = node.integer("group", 1), node.integers("output_padding"), node.integers("output_shape")

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rank = x.ndim - 2
        if rank not in _TRANSPOSE:
            raise node.unsupported(f"a transposed convolution over {rank} axes; torch has up to 3")
        windows, more = Windows(node, rank), extra or [0] * rank
        full = [
            (size - 1) * s + d * (k - 1) + 1
            for size, k, s, d in zip(x.shape[2:], weight.shape[2:], windows.strides, windows.dilations, strict=True)
        ]
        targets = wanted[-rank:] or [size * s for size, s in zip(x.shape[2:], windows.strides, strict=True)]
        totals = [f + e - t for f, e, t in zip(full, more, targets, strict=True)]
        # How many positions of the full result go at either end.
        larger_first = windows.auto_pad != "SAME_UPPER"
        before, after = windows.ends(totals, larger_first=larger_first, always=bool(wanted))
        y = _TRANSPOSE[rank](x, weight, None, windows.strides, 0, 0, groups, windows.dilations)
        # Output padding adds positions behind the full result that no input reaches; pads take away at both ends.
        y = pad_spatial(y, [-b for b in before], [m - a for m, a in zip(more, after, strict=True)], 0.0)
        return y if bias is None else y + bias.view(-1, *[1] * rank)

    return run
