"""Constants, shapes and types."""

import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator
from onnxfold.torch_graph.values import tensor_type, to_tensor


@operator("Constant")
def constant(node: TorchNode) -> Operation:
    """A literal value."""
    value = node.value("value")
    numbers = next((node.value(n) for n in ("value_float", "value_floats") if node.has_attribute(n)), None)
    integers = next((node.value(n) for n in ("value_int", "value_ints") if node.has_attribute(n)), None)
    if isinstance(value, TensorProto):
        tensor = to_tensor(numpy_helper.to_array(value), node.dtype)
    elif numbers is not None:
        tensor = torch.tensor(numbers, dtype=node.dtype)
    elif integers is not None:
        tensor = torch.tensor(integers, dtype=torch.int64)
    else:
        raise node.unsupported("its value is a string or sparse")
    return lambda: tensor


@operator("ConstantOfShape")
def constant_of_shape(node: TorchNode) -> Operation:
    """One value everywhere."""
    value = node.value("value")
    fill = torch.zeros((), dtype=node.dtype)
    if isinstance(value, TensorProto):
        fill = to_tensor(numpy_helper.to_array(value), node.dtype).reshape(())
    return lambda shape: fill.to(shape.device).expand([int(s) for s in shape.tolist()])


@operator("Shape")
def shape(node: TorchNode) -> Operation:
    """Lengths of the axes, or of some that follow each other."""
    start, end = node.integer("start", 0), node.integer("end", 2**31)
    return lambda x: torch.tensor(list(x.shape)[start:end], dtype=torch.int64, device=x.device)


@operator("Size")
def size(node: TorchNode) -> Operation:
    """Number of elements."""
    return lambda x: torch.tensor(x.numel(), device=x.device)


@operator("Range")
def number_range(node: TorchNode) -> Operation:
    """Numbers at equal distances."""

    def run(start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
        return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype, device=start.device)

    return run


@operator("Cast")
def cast(node: TorchNode) -> Operation:
    """To another type; every float type is the one that the graph computes in."""
    target = node.integer("to", TensorProto.FLOAT)
    kind = tensor_type(target, node.dtype)
    if kind is None:
        raise node.unsupported(f"the type {TensorProto.DataType.Name(target)} has no counterpart in torch")
    return lambda x: x.to(kind)


@operator("CastLike")
def cast_like(node: TorchNode) -> Operation:
    """To the type of the second operand."""
    return lambda x, other: x.to(other.dtype)
