"""Padding of convolutions and pools: ONNX's numbers as SAME, VALID or a PAD before the operator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value, schema
from onnxfold.export.tflite.layout import Shape


@dataclass(frozen=True)
class TFLiteWindow:
    """A sliding window in every spatial dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    #: What the input needs before and after it for exactly `output` positions; negative where it is not read to its
    #: end.
    pads: tuple[tuple[int, int], ...]
    output: tuple[int, ...]

    def is_same(self, spatial: Shape) -> bool:
        """Whether the pads are those that TFLite computes for SAME."""
        return all(
            out == math.ceil(n / s) and pad == same_pads(n, k, s, d)
            for n, k, s, d, out, pad in zip(
                spatial, self.size, self.stride, self.dilation, self.output, _at_least_zero(self.pads), strict=True
            )
        )

    def is_valid(self) -> bool:
        """Whether nothing is padded."""
        return all(p == (0, 0) for p in _at_least_zero(self.pads))

    def padded(self) -> tuple[tuple[int, int], ...]:
        """Return the pads that a PAD in front of a VALID window has."""
        return _at_least_zero(self.pads)


def same_pads(n: int, k: int, s: int, d: int) -> tuple[int, int]:
    """Return the pads of TFLite for SAME."""
    total = max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
    return total // 2, total - total // 2


def _at_least_zero(pads: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((max(a, 0), max(b, 0)) for a, b in pads)


def window(op: Op, size: Sequence[int], spatial: Shape, output: Shape) -> TFLiteWindow:
    """Read a window from a node's attributes."""
    rank = len(size)
    stride = op.integers("strides", [1] * rank)
    dilation = op.integers("dilations", [1] * rank)
    begins = op.integers("pads", [0] * 2 * rank)[:rank]
    auto = op.text("auto_pad", "NOTSET")
    pads = []
    for n, k, s, d, begin, out in zip(spatial, size, stride, dilation, begins, output, strict=True):
        needed = (out - 1) * s + (k - 1) * d + 1 - n
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(needed, 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        elif auto == "VALID":
            begin = 0
        pads.append((begin, needed - begin))
    return TFLiteWindow(tuple(size), tuple(stride), tuple(dilation), tuple(pads), tuple(int(o) for o in output))


def padding(op: Op, x: Value, win: TFLiteWindow, fill: float | None = 0.0) -> tuple[Value, int]:
    """Return the input, padded where neither SAME nor VALID says it, and TFLite's padding."""
    kinds = schema().Padding
    spatial = x.shape[1:-1]
    if win.is_valid():
        return x, int(kinds.VALID)
    if fill is not None and win.is_same(spatial):
        return x, int(kinds.SAME)
    return pad(op, x, ((0, 0), *win.padded(), (0, 0)), fill or 0.0), int(kinds.VALID)


def pad(op: Op, x: Value, pads: Sequence[tuple[int, int]], fill: float) -> Value:
    """Append a PAD, or a PADV2 where the fill is not zero."""
    shape = tuple(d if not a + b else int(d) + a + b for d, (a, b) in zip(x.shape, pads, strict=True))
    amounts = op.graph.constant(np.array(pads, np.int32).reshape(len(pads), 2))
    if fill == 0:
        return op.graph.op("PAD", [x, amounts], shape)
    # The quantiser gives a constant that shares the scale of an input one number per axis of the input.
    return op.graph.op("PADV2", [x, amounts, op.graph.constant(np.full((1,) * len(pads), fill, np.float32))], shape)


def mirror_pads(op: Op, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
    """Append a MIRROR_PAD that repeats the values at the border."""
    shape = tuple(d if not a + b else int(d) + a + b for d, (a, b) in zip(x.shape, pads, strict=True))
    amounts = op.graph.constant(np.array(pads, np.int32))
    return op.graph.op("MIRROR_PAD", [x, amounts], shape, mode=int(schema().MirrorPadMode.SYMMETRIC))


def as_image(op: Op, x: Value) -> Value:
    """Return (N, L, C) as (N, 1, L, C)."""
    return op.graph.reshape(x, (x.shape[0], 1, *x.shape[1:])) if len(x.shape) == 3 else x


def from_image(op: Op, x: Value, rank: int) -> Value:
    """Undo :func:`as_image` for a result of an ONNX rank."""
    return op.graph.reshape(x, (x.shape[0], *x.shape[2:])) if rank == 3 else x


def image_window(win: TFLiteWindow) -> TFLiteWindow:
    """Return the window of :func:`as_image`'s result; the new axis has the stride of the old one."""
    if len(win.size) != 1:
        return win
    return TFLiteWindow((1, *win.size), win.stride * 2, (1, *win.dilation), ((0, 0), *win.pads), (1, *win.output))
