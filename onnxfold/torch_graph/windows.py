"""Kernels, strides and pads of convolutions and pools."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from onnxfold.torch_graph.registry import TorchNode


class Windows:
    """The window attributes of a node."""

    def __init__(self, node: TorchNode) -> None:
        self.kernel = node.integers("kernel_shape")
        self.auto_pad = node.text("auto_pad", "NOTSET")
        self.ceil = bool(node.integer("ceil_mode", 0))
        self._strides, self._dilations = node.integers("strides"), node.integers("dilations")
        self._pads = node.integers("pads")

    def strides(self, rank: int) -> list[int]:
        """Return a stride per axis."""
        return self._strides or [1] * rank

    def dilations(self, rank: int) -> list[int]:
        """Return a dilation per axis."""
        return self._dilations or [1] * rank

    def explicit(self, rank: int) -> tuple[list[int], list[int]]:
        """Return the pads of the attribute, before and after."""
        pads = self._pads or [0] * (2 * rank)
        return pads[:rank], pads[rank:]

    def pads(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the pads before and after each axis, auto_pad resolved."""
        rank = len(sizes)
        if self.auto_pad == "VALID":
            return [0] * rank, [0] * rank
        if not self.auto_pad.startswith("SAME"):
            return self.explicit(rank)
        totals = [
            max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, self.strides(rank), self.dilations(rank), strict=True)
        ]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        return (large, small) if self.auto_pad == "SAME_LOWER" else (small, large)

    def counts(self, sizes: Sequence[int]) -> list[int]:
        """Return the number of windows of a pool along each axis."""
        before, after = self.pads(sizes, self.kernel)
        counts = []
        for size, b, a, k, s, d in zip(
            sizes, before, after, self.kernel, self.strides(len(sizes)), self.dilations(len(sizes)), strict=True
        ):
            room = size + b + a - d * (k - 1) - 1
            count = (-(-room // s) if self.ceil else room // s) + 1
            # A window that begins in the padding behind does not count.
            counts.append(count - 1 if (count - 1) * s >= size + b else count)
        return counts

    def covering_pads(self, sizes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the pads with which the windows of a pool end exactly at the end, negative to cut off."""
        rank = len(sizes)
        before, _ = self.pads(sizes, self.kernel)
        after = [
            (count - 1) * s + d * (k - 1) + 1 - size - b
            for count, size, b, k, s, d in zip(
                self.counts(sizes), sizes, before, self.kernel, self.strides(rank), self.dilations(rank), strict=True
            )
        ]
        return before, after


def pad_spatial(x: Tensor, before: Sequence[int], after: Sequence[int], value: float) -> Tensor:
    """Return a tensor with its last axes padded, or cut where a pad is negative."""
    pairs = [p for pair in zip(reversed(before), reversed(after), strict=True) for p in pair]
    return pad(x, pairs, value=value) if any(pairs) else x
