"""Kernels, strides and pads of convolutions and pools; pools over windows, and global pools."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import pad

from onnxfold.torch_graph.registry import Operation, TorchNode, operations, operator


class Windows:
    """The window attributes of a node."""

    def __init__(self, node: TorchNode, rank: int = 0) -> None:
        self.kernel = node.integers("kernel_shape")
        rank = rank or len(self.kernel)  # of a pool, the kernel is an attribute
        self.auto_pad = node.text("auto_pad", "NOTSET")
        self.ceil = bool(node.integer("ceil_mode", 0))
        self.strides = node.integers("strides") or [1] * rank
        self.dilations = node.integers("dilations") or [1] * rank
        pads = node.integers("pads") or [0] * (2 * rank)
        self.explicit = pads[:rank], pads[rank:]  # the pads of the attribute, before and after

    def pads(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the pads before and after each axis, auto_pad resolved."""
        totals = [
            max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, self.strides, self.dilations, strict=True)
        ]
        return self.ends(totals, larger_first=self.auto_pad == "SAME_LOWER")

    def ends(self, totals: Sequence[int], *, larger_first: bool, always: bool = False) -> tuple[list[int], list[int]]:
        """Return the attribute's pads, or where auto_pad or `always` says so, halves of a total per axis."""
        if self.auto_pad == "VALID":
            return [0] * len(totals), [0] * len(totals)
        if not always and not self.auto_pad.startswith("SAME"):
            return self.explicit
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        return (large, small) if larger_first else (small, large)

    def covering_pads(self, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the pads with which the windows of a pool end exactly at the end, negative to cut off."""
        before, after = self.pads(sizes, self.kernel)
        covering = []
        windows = zip(sizes, before, after, self.kernel, self.strides, self.dilations, strict=True)
        for size, b, a, k, s, d in windows:
            reach = d * (k - 1) + 1
            room = size + b + a - reach
            count = (-(-room // s) if self.ceil else room // s) + 1
            # A window that begins in the padding behind does not count.
            count -= (count - 1) * s >= size + b
            covering.append((count - 1) * s + reach - size - b)
        return before, covering


def pad_spatial(x: Tensor, before: Sequence[int], after: Sequence[int], value: float) -> Tensor:
    """Return a tensor with its last axes padded, or cut where a pad is negative."""
    pairs = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
    return pad(x, pairs, value=value) if any(pairs) else x


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
        return _MAXIMUM[rank](x, windows.kernel, windows.strides, 0, windows.dilations)

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
    if rank in _AVERAGE and all(d == 1 for d in windows.dilations):
        return _AVERAGE[rank](x, windows.kernel, windows.strides) * math.prod(windows.kernel)
    for axis, (k, s, d) in enumerate(zip(windows.kernel, windows.strides, windows.dilations, strict=True), 2):
        # Sums over windows are separable: one axis after the other.
        last = x.shape[axis] - d * (k - 1)
        parts = [x.narrow(axis, i * d, last) for i in range(k)]
        index = torch.arange(0, last, s, device=x.device)
        x = torch.stack(parts).sum(0).index_select(axis, index)
    return x
