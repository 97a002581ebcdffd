"""Elementwise operators of several operands with numpy broadcasting."""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le, "And": torch.logical_and,
    "Or": torch.logical_or, "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
}  # fmt: skip
_VARIADIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum, "Min": torch.minimum, "Sum": torch.add,
}  # fmt: skip


@operator(*_BINARY)
def binary(node: TorchNode) -> Operation:
    """Two operands."""
    return _BINARY[node.op_type]


@operator("Div")
def divide(node: TorchNode) -> Operation:
    """Quotient; of integers, rounded towards zero."""
    return lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


@operator("Mod")
def modulo(node: TorchNode) -> Operation:
    """Remainder with the divisor's sign, or with the dividend's (fmod)."""
    return torch.fmod if node.integer("fmod", 0) else torch.remainder


@operator("Pow")
def power(node: TorchNode) -> Operation:
    """Power, in the type of the base."""
    return lambda base, exponent: torch.pow(base, exponent).to(base.dtype)


@operator(*_VARIADIC)
def variadic(node: TorchNode) -> Operation:
    """Any number of operands."""
    function = _VARIADIC[node.op_type]
    return lambda *operands: reduce(function, operands)


@operator("Mean")
def mean(node: TorchNode) -> Operation:
    """Mean of any number of operands."""
    return lambda *operands: reduce(torch.add, operands) / len(operands)


@operator("Where")
def where(node: TorchNode) -> Operation:
    """Elements of one operand or the other."""
    return torch.where
