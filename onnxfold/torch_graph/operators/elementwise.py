"""Functions of single elements: of one operand, and of several ones with numpy broadcasting."""

import math
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from onnxfold.torch_graph.registry import Operation, operation, operations


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Return negative values times a slope, in half the time where that is one number per channel."""
    if x.ndim > 1 and [1] * (x.ndim - slope.ndim) + list(slope.shape) == [1, x.shape[1], *[1] * (x.ndim - 2)]:
        return functional.prelu(x, slope.flatten().to(x.dtype))
    return torch.where(x < 0, x * slope, x)


_ROWS: dict[str, Operation] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "BitwiseNot": torch.bitwise_not, "Ceil": torch.ceil, "Cos": torch.cos,
    "Cosh": torch.cosh, "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": functional.hardswish,
    "IsNaN": torch.isnan, "Log": torch.log, "Mish": functional.mish, "Neg": torch.neg, "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal, "Relu": torch.relu, "Round": torch.round, "Sigmoid": torch.sigmoid,
    "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh, "Softplus": functional.softplus,
    "Softsign": functional.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
    "LeakyRelu": lambda x, *, alpha=0.01: functional.leaky_relu(x, alpha),
    "PRelu": _prelu,
    "Elu": lambda x, *, alpha=1.0: functional.elu(x, alpha),
    "Celu": lambda x, *, alpha=1.0: functional.celu(x, alpha),
    "Selu": lambda x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875: (
        gamma * functional.elu(x, alpha)
    ),
    "ThresholdedRelu": lambda x, *, alpha=1.0: functional.threshold(x, alpha, 0.0),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: functional.hardtanh(alpha * x + beta, 0.0, 1.0),
    "Gelu": lambda x, *, approximate="none": functional.gelu(x, approximate=approximate),
    "Swish": lambda x, *, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Equal": torch.eq, "Greater": torch.gt,
    "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le, "And": torch.logical_and,
    "Or": torch.logical_or, "Xor": torch.logical_xor, "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or, "BitwiseXor": torch.bitwise_xor,
    # Integers are divided towards zero; a remainder has the divisor's sign, or the dividend's (fmod).
    "Div": lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Mod": lambda a, b, *, fmod=False: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Pow": lambda base, exponent: torch.pow(base, exponent).to(base.dtype),
    "Max": lambda *operands: reduce(torch.maximum, operands),
    "Min": lambda *operands: reduce(torch.minimum, operands),
    "Sum": lambda *operands: reduce(torch.add, operands),
    "Mean": lambda *operands: reduce(torch.add, operands) / len(operands),
    "Where": torch.where,
    # Zero near zero, biased elsewhere.
    "Shrink": lambda x, *, bias=0.0, lambd=0.5: (
        torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x)))
    ),
    "IsInf": lambda x, *, detect_positive=True, detect_negative=True: (
        (torch.isposinf(x) & detect_positive) | (torch.isneginf(x) & detect_negative)
    ),
}  # fmt: skip
operations(_ROWS)
operations({
    "Gelu": functional.gelu,
    "BiasGelu": lambda x, bias: functional.gelu(x + bias),
    "FastGelu": lambda x, bias=None: functional.gelu(x if bias is None else x + bias, approximate="tanh"),
    "QuickGelu": lambda x, *, alpha=1.702: x * torch.sigmoid(alpha * x),
}, domain="com.microsoft")  # fmt: skip


@operation("Clip")
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *,
    min: float = -math.inf, max: float = math.inf,  # noqa: A002  (attributes, before operator set 11)
) -> Tensor:  # fmt: skip
    """Cut to an interval; the upper bound wins, as in numpy."""
    if x.is_floating_point() and all(b is None or (b.numel() == 1 and not b.requires_grad) for b in (low, high)):
        least, most = min if low is None else float(low), max if high is None else float(high)
        # One pass over memory backward in place of clamp's seven.
        return functional.hardtanh(x, least, most) if least <= most else x.clamp(least, most)
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


@operation("QuantizeLinear")
def quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1) -> Tensor:
    """Round to integers, as floats; gradients pass as if nothing was rounded (arXiv 1308.3432)."""
    bounds = torch.iinfo(torch.uint8 if zero is None else zero.dtype)
    steps = x / _along(axis, scale, x.ndim)
    steps = steps if zero is None else steps + _along(axis, zero, x.ndim)
    return (steps + (steps.round() - steps).detach()).clamp(bounds.min, bounds.max)


@operation("DequantizeLinear")
def dequantize(steps: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1) -> Tensor:
    """Return the numbers of integers, with one scale or one per channel."""
    numbers = steps.to(scale.dtype)
    numbers = numbers if zero is None else numbers - _along(axis, zero, steps.ndim)
    return numbers * _along(axis, scale, steps.ndim)


def _along(axis: int, values: Tensor, ndim: int) -> Tensor:
    """Return one value, or one per entry of an axis, as a tensor of so many axes multiplies it."""
    return values.reshape([-1 if values.numel() > 1 and i == axis % ndim else 1 for i in range(ndim)])
