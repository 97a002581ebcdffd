"""Softmax and its relatives along one axis; before operator set 13, over all axes from one on."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator


def _hardmax(x: Tensor, axis: int) -> Tensor:
    return one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)


_FUNCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "Softmax": torch.softmax, "LogSoftmax": torch.log_softmax, "Hardmax": _hardmax,
}  # fmt: skip


@operator(*_FUNCTIONS)
def softmax_of_rows(node: TorchNode) -> Operation:
    """Over the axes from `axis` on, taken together."""
    function, axis = _FUNCTIONS[node.op_type], node.integer("axis", 1)

    def run(x: Tensor) -> Tensor:
        return function(x.flatten(axis % x.ndim), -1).reshape(x.shape)

    return run


@operator(*_FUNCTIONS, since=13)
def softmax(node: TorchNode) -> Operation:
    """Along one axis."""
    function, axis = _FUNCTIONS[node.op_type], node.integer("axis", -1)
    return lambda x: function(x, axis)
