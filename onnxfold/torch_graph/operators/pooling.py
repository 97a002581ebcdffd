"""Pools over windows, and global pools."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from onnxfold.torch_graph.registry import Operation, TorchNode, operations, operator
from onnxfold.torch_graph.windows import Windows, pad_spatial

_MAXIMUM = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@operator("MaxPool")
def max_pool(node: TorchNode) -> Operation:
    """Largest element of every window."""
    if node.has_output(1):
        raise node.unsupported("its second output, the places of the maxima, is read")
    windows = Windows(node)
    rank = len(windows.kernel)
    if rank not in _MAXIMUM:
        raise node.unsupported(f"a pool over {rank} axes; torch has up to 3")

    def run(x: Tensor) -> Tensor:
        x = pad_spatial(x, *windows.covering_pads(x.shape[2:]), -math.inf)
        return _MAXIMUM[rank](x, windows.kernel, windows.strides(rank), 0, windows.dilations(rank))

    return run


@operator("AveragePool")
def average_pool(node: TorchNode) -> Operation:
    """Mean of every window; pads count or do not."""
    windows, with_pads = Windows(node), bool(node.integer("count_include_pad", 0))

    def run(x: Tensor) -> Tensor:
        sizes = x.shape[2:]
        before, after = windows.covering_pads(sizes)
        total = _window_sums(pad_spatial(x, before, after, 0.0), windows)
        if not any(before) and all(a <= 0 for a in after):
            return total / math.prod(windows.kernel)
        # How many elements of a window count: those inside, and with `count_include_pad` those in the declared pads.
        declared = windows.pads(sizes, windows.kernel)
        ones = torch.ones((1, 1, *sizes), dtype=x.dtype, device=x.device)
        ones = pad_spatial(ones, *declared, 1.0 if with_pads else 0.0)
        rest = [a - d for a, d in zip(after, declared[1], strict=True)]
        return total / _window_sums(pad_spatial(ones, [0] * len(rest), rest, 0.0), windows)

    return run


@operator("LpPool")
def lp_pool(node: TorchNode) -> Operation:
    """Norm of every window."""
    windows, order = Windows(node), node.integer("p", 2)

    def run(x: Tensor) -> Tensor:
        powers = pad_spatial(x.abs() ** order, *windows.covering_pads(x.shape[2:]), 0.0)
        return _window_sums(powers, windows) ** (1.0 / order)

    return run


def _spatial(x: Tensor) -> list[int]:
    return list(range(2, x.ndim))


operations({
    "GlobalAveragePool": lambda x: x.mean(_spatial(x), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(_spatial(x), keepdim=True),
    "GlobalLpPool": lambda x, *, p=2: torch.linalg.vector_norm(x, p, _spatial(x), keepdim=True),
})  # fmt: skip


def _window_sums(x: Tensor, windows: Windows) -> Tensor:
    """Return the sum over every window of a tensor that the windows cover exactly."""
    rank = x.ndim - 2
    strides, dilations = windows.strides(rank), windows.dilations(rank)
    if rank in _AVERAGE and all(d == 1 for d in dilations):
        return _AVERAGE[rank](x, windows.kernel, strides) * math.prod(windows.kernel)
    for axis, (k, s, d) in enumerate(zip(windows.kernel, strides, dilations, strict=True), 2):
        # Sums over windows are separable: one axis after the other.
        last = x.shape[axis] - d * (k - 1)
        parts = [x.narrow(axis, i * d, last) for i in range(k)]
        index = torch.arange(0, last, s, device=x.device)
        x = torch.stack(parts).sum(0).index_select(axis, index)
    return x
