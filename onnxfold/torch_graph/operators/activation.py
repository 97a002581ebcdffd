"""Activation functions of single elements."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from onnxfold.torch_graph.node import TorchNode
from onnxfold.torch_graph.registry import Operation, operator

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": functional.hardswish,
    "IsNaN": torch.isnan, "Log": torch.log, "Mish": functional.mish, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip


@operator(*_PLAIN)
def plain(node: TorchNode) -> Operation:
    """Functions without attributes."""
    return _PLAIN[node.op_type]


@operator("LeakyRelu")
def leaky_relu(node: TorchNode) -> Operation:
    """A small slope below zero."""
    alpha = node.number("alpha", 0.01)
    return lambda x: functional.leaky_relu(x, alpha)


@operator("PRelu")
def prelu(node: TorchNode) -> Operation:
    """A slope below zero that broadcasts to the input."""
    return lambda x, slope: torch.where(x < 0, x * slope, x)


@operator("Elu")
def elu(node: TorchNode) -> Operation:
    """Exponential below zero."""
    alpha = node.number("alpha", 1.0)
    return lambda x: functional.elu(x, alpha)


@operator("Celu")
def celu(node: TorchNode) -> Operation:
    """Exponential below zero, with a continuous slope."""
    alpha = node.number("alpha", 1.0)
    return lambda x: functional.celu(x, alpha)


@operator("Selu")
def selu(node: TorchNode) -> Operation:
    """Scaled exponential."""
    alpha, gamma = node.number("alpha", 1.67326319217681884765625), node.number("gamma", 1.05070102214813232421875)
    return lambda x: gamma * functional.elu(x, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(node: TorchNode) -> Operation:
    """The input above a threshold."""
    alpha = node.number("alpha", 1.0)
    return lambda x: functional.threshold(x, alpha, 0.0)


@operator("HardSigmoid")
def hard_sigmoid(node: TorchNode) -> Operation:
    """A line between 0 and 1."""
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    return lambda x: (alpha * x + beta).clamp(0.0, 1.0)


@operator("Shrink")
def shrink(node: TorchNode) -> Operation:
    """Zero near zero, biased elsewhere."""
    bias, threshold = node.number("bias", 0.0), node.number("lambd", 0.5)

    def run(x: Tensor) -> Tensor:
        shrunk = torch.where(x > threshold, x - bias, torch.zeros_like(x))
        return torch.where(x < -threshold, x + bias, shrunk)

    return run


@operator("IsInf")
def is_infinite(node: TorchNode) -> Operation:
    """Whether an element is infinite."""
    signs = {s for s, on in ((1, "detect_positive"), (-1, "detect_negative")) if node.integer(on, 1)}
    if len(signs) == 2:
        return torch.isinf
    return lambda x: torch.isposinf(x) if 1 in signs else torch.isneginf(x) if signs else torch.zeros_like(x).bool()


@operator("Gelu")
def gelu(node: TorchNode) -> Operation:
    """Gaussian error linear unit, exact or by its approximation."""
    approximate = node.text("approximate", "none")
    return lambda x: functional.gelu(x, approximate=approximate)


@operator("Gelu", "BiasGelu", domain="com.microsoft")
def biased_gelu(node: TorchNode) -> Operation:
    """Exact, of a sum."""
    return lambda x, bias=None: functional.gelu(x if bias is None else x + bias)


@operator("FastGelu", domain="com.microsoft")
def fast_gelu(node: TorchNode) -> Operation:
    """By its approximation, of a sum."""
    return lambda x, bias=None: functional.gelu(x if bias is None else x + bias, approximate="tanh")


@operator("Swish")
def swish(node: TorchNode) -> Operation:
    """The input times a sigmoid of it."""
    alpha = node.number("alpha", 1.0)
    return lambda x: x * torch.sigmoid(alpha * x)


@operator("QuickGelu", domain="com.microsoft")
def quick_gelu(node: TorchNode) -> Operation:
    """The input times a steeper sigmoid of it."""
    alpha = node.number("alpha", 1.702)
    return lambda x: x * torch.sigmoid(alpha * x)


@operator("Clip")
def clip_by_attributes(node: TorchNode) -> Operation:
    """Cut to an interval that is fixed."""
    low, high = node.number("min", -math.inf), node.number("max", math.inf)
    return lambda x: x.clamp(low, high)


@operator("Clip", since=11)
def clip(node: TorchNode) -> Operation:
    """Cut to an interval; the upper bound wins, as in numpy."""

    def run(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
        x = x if low is None else torch.maximum(x, low)
        return x if high is None else torch.minimum(x, high)

    return run
