"""Operators that select or pad elements: slices, indices, pads."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onnxfold.torch_graph.operators.pooling import pad_spatial
from onnxfold.torch_graph.registry import Operation, TorchNode, operation, operations, operator

operations({
    "Slice": lambda x, *, starts=(), ends=(), axes=(): (
        _slice(x, starts, ends, axes or range(len(starts)), [1] * len(starts))
    ),
    "GatherElements": lambda x, indices, *, axis=0: (
        x.gather(axis, torch.where(indices < 0, indices + x.shape[axis], indices).long())
    ),
})  # fmt: skip


@operation("Slice", since=10)
def slice_by_inputs(
    x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
) -> Tensor:
    """Ranges along axes, with steps."""
    first = starts.tolist()
    along = range(len(first)) if axes is None else axes.tolist()
    return _slice(x, first, ends.tolist(), along, [1] * len(first) if steps is None else steps.tolist())


def _slice(x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]) -> Tensor:
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        picked = range(x.shape[axis])[start:end:step]
        if step > 0:
            x = x[(slice(None),) * (axis % x.ndim) + (slice(picked.start, picked.stop, step),)]
        else:
            x = x.index_select(axis, torch.tensor(picked, dtype=torch.int64, device=x.device))
    return x


@operation("Gather")
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """Whole slices along an axis by their index."""
    along, flat = axis % x.ndim, indices.reshape(-1).long()
    picked = x.index_select(along, torch.where(flat < 0, flat + x.shape[along], flat))
    return picked.reshape((*x.shape[:along], *indices.shape, *x.shape[along + 1 :]))


@operator("GatherND")
def gather_by_places(node: TorchNode) -> Operation:
    """Slices by the indices of several leading axes."""
    if node.integer("batch_dims", 0):
        raise node.unsupported("it has batch axes")
    return lambda x, indices: x[tuple(indices.long().unbind(-1))]


@operator("Pad")
def pad(node: TorchNode) -> Operation:
    """Pads in front of and behind every axis, or some axes; attributes before operator set 11."""
    fixed, fill, mode = node.integers("pads"), node.number("value", 0.0), node.text("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):  # numpy has these names, too
        raise node.unsupported(f"the mode '{mode}'")

    def run(x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None) -> Tensor:
        amounts = fixed if pads is None else pads.tolist()
        before, after = [0] * x.ndim, [0] * x.ndim
        along = range(x.ndim) if axes is None else axes.tolist()
        for axis, front, behind in zip(along, amounts, amounts[len(amounts) // 2 :], strict=False):
            before[axis], after[axis] = front, behind
        if mode == "constant":
            return pad_spatial(x, before, after, fill if value is None else value.item())
        for axis, (front, behind) in enumerate(zip(before, after, strict=True)):
            if front or behind:
                padded = np.pad(np.arange(x.shape[axis]), (max(front, 0), max(behind, 0)), mode=mode)  # type: ignore[call-overload]
                places = padded[max(-front, 0) : len(padded) - max(-behind, 0)]
                x = x.index_select(axis, torch.tensor(places, device=x.device))
        return x

    return run
