"""Softmax and its relatives, reductions over any axes, and positions of extreme elements."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from onnxfold.torch_graph.registry import Operation, TorchNode, operation, operator

Axes = list[int]


_SOFTMAX: dict[str, Callable[[Tensor, int], Tensor]] = {
    "Softmax": torch.softmax, "LogSoftmax": torch.log_softmax,
    "Hardmax": lambda x, axis: one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype),
}  # fmt: skip


@operator(*_SOFTMAX)
def softmax(node: TorchNode) -> Operation:
    """Along one axis; before operator set 13 over the axes from `axis` on, taken together."""
    function = _SOFTMAX[node.op_type]
    if node.version < 13:
        first = node.integer("axis", 1)
        return lambda x: function(x.flatten(first % x.ndim), -1).reshape(x.shape)
    axis = node.integer("axis", -1)
    return lambda x: function(x, axis)


def _product(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


_REDUCE: dict[str, Callable[[Tensor, Axes, bool], Tensor]] = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep),
    "ReduceLogSum": lambda x, axes, keep: x.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: x.amax(axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: x.amin(axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keepdim=keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keepdim=keep),
}


@operator(*_REDUCE)
def reduction(node: TorchNode) -> Operation:
    """Over the axes of an attribute or of an input, over all if there are none."""
    function, keep = _REDUCE[node.op_type], bool(node.integer("keepdims", 1))
    fixed, idle = node.integers("axes"), bool(node.integer("noop_with_empty_axes", 0))

    def run(x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = fixed if axes is None else axes.tolist()
        if not chosen and idle:
            return x
        return function(x, chosen or list(range(x.ndim)), keep)

    return run


@operator("ArgMax", "ArgMin")
def extreme_place(node: TorchNode) -> Operation:
    """Place of the largest or smallest element, the first or the last of equal ones."""
    function = torch.argmax if node.op_type == "ArgMax" else torch.argmin
    axis, keep = node.integer("axis", 0), bool(node.integer("keepdims", 1))
    if node.integer("select_last_index", 0):
        return lambda x: x.shape[axis] - 1 - function(x.flip(axis), axis, keep)
    return lambda x: function(x, axis, keep)


@operation("TopK", since=10)
def top_k(x: Tensor, k: Tensor, *, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Largest or smallest elements along an axis, in order; the first of equal ones."""
    values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
    count = int(k.reshape(-1)[0])
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


@operation("CumSum")
def cumulative_sum(x: Tensor, axis: Tensor, *, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sum along an axis, with or without the element itself, from either end."""
    along = int(axis)
    y = x.flip(along) if reverse else x
    total = y.cumsum(along) - y if exclusive else y.cumsum(along)
    return total.flip(along) if reverse else total
