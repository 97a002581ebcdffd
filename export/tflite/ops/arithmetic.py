"""Operators of several inputs that broadcast."""

from collections.abc import Callable

import numpy as np

from onnxfold.export.tflite.calculator import WIDER, Calculator
from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout_rules import ELEMENTWISE
from onnxfold.export.tflite.registry import converter

_NUMBERS = ("FLOAT32", "INT32", "INT64")
#: Operator -> its code in TFLite, and the types that its kernels compute in.
_ARITHMETIC: dict[str, tuple[str, tuple[str, ...]]] = {
    "Add": ("ADD", _NUMBERS), "Sub": ("SUB", _NUMBERS), "Mul": ("MUL", _NUMBERS), "Div": ("DIV", _NUMBERS[:2]),
    "Max": ("MAXIMUM", _NUMBERS), "Min": ("MINIMUM", _NUMBERS), "Sum": ("ADD", _NUMBERS[:1]),
    "Mean": ("ADD", _NUMBERS[:1]),
}  # fmt: skip
_COMPARISONS = {
    "Equal": ("EQUAL", (*_NUMBERS, "BOOL")), "Greater": ("GREATER", _NUMBERS), "Less": ("LESS", _NUMBERS),
    "GreaterOrEqual": ("GREATER_EQUAL", _NUMBERS), "LessOrEqual": ("LESS_EQUAL", _NUMBERS),
}  # fmt: skip
_LOGICAL = {"And": "LOGICAL_AND", "Or": "LOGICAL_OR", "Xor": "NOT_EQUAL"}


def _operands(op: Op, types: tuple[str, ...]) -> list[Value]:
    """Return all inputs in the first type, their own or a wider one, that the kernels have."""
    own = op.element_type()
    wide = own if own in types else WIDER.get(own, own)
    if wide not in types:
        op.refuse(f"TFLite computes it in {', '.join(types)}, not in {own}")
    return [op.graph.cast(op.operand(i, op.planned_layout()), wide) for i in range(len(op.node.input))]


@converter(*_ARITHMETIC, layouts=ELEMENTWISE)
def arithmetic(op: Op) -> None:
    """One TFLite operator per pair; small integers are computed in 32 bits."""
    code, types = _ARITHMETIC[op.op_type]
    total, *others = _operands(op, types)
    for other in others:
        total = op.calc.binary(code, total, other)
    if op.op_type == "Mean" and others:
        total = op.calc.mul(total, 1 / (1 + len(others)))
    op.write(op.graph.cast(total, op.result_type()), op.planned_layout())


@converter(*_COMPARISONS, layouts=ELEMENTWISE)
def comparison(op: Op) -> None:
    """A comparison; small integers are compared in 32 bits."""
    code, types = _COMPARISONS[op.op_type]
    a, b = _operands(op, types)
    op.write(op.calc.binary(code, a, b, "BOOL"), op.planned_layout())


@converter(*_LOGICAL, layouts=ELEMENTWISE)
def logical(op: Op) -> None:
    """LOGICAL_AND, LOGICAL_OR, NOT_EQUAL."""
    a, b = _operands(op, ("BOOL",))
    op.write(op.calc.binary(_LOGICAL[op.op_type], a, b), op.planned_layout())


@converter("Where", layouts=ELEMENTWISE)
def where(op: Op) -> None:
    """SELECT_V2."""
    condition, a, b = (op.operand(i, op.planned_layout()) for i in range(3))
    op.write(op.calc.select(condition, a, b), op.planned_layout())


_POWERS: dict[float | None, Callable[[Calculator, Value], Value]] = {
    1.0: lambda c, x: x,
    2.0: lambda c, x: c.mul(x, x),
    3.0: lambda c, x: c.mul(c.mul(x, x), x),
    0.5: lambda c, x: c.unary("SQRT", x),
    -0.5: lambda c, x: c.unary("RSQRT", x),
    -1.0: lambda c, x: c.div(1.0, x),
}


@converter("Pow", layouts=ELEMENTWISE)
def power(op: Op) -> None:
    """Products and roots for the usual constant exponents, else POW."""
    layout, result_type = op.planned_layout(), op.result_type()
    exponent = op.required_weight(1, "exponent").reshape(-1) if op.is_constant(1) else np.zeros(0)
    number = float(exponent[0]) if exponent.size == 1 and len(op.shape(1)) <= len(op.shape(0)) else None
    base = op.operand(0, layout)
    if result_type == "FLOAT32" and number in _POWERS:
        op.write(_POWERS[number](op.calc, base), layout)
        return
    own = (op.element_type(0), op.element_type(1))
    wide = "FLOAT32" if "FLOAT32" in own or "INT64" in own or "UINT32" in own else "INT32"
    if "UINT64" in own:
        op.refuse("TFLite does not compute with 64-bit unsigned integers")
    a, b = (op.graph.cast(v, wide) for v in (base, op.operand(1, layout)))
    op.write(op.graph.cast(op.calc.binary("POW", a, b), result_type), layout)


@converter("Mod", layouts=ELEMENTWISE)
def modulo(op: Op) -> None:
    """FLOOR_MOD, whose sign is the divisor's; with fmod, whose sign is the dividend's, a - b trunc(a / b)."""
    calc = op.calc
    a, b = _operands(op, _NUMBERS)
    if not op.integer("fmod", 0):
        result = calc.binary("FLOOR_MOD", a, b)
    elif a.element_type == "FLOAT32":
        quotient = calc.div(a, b)
        whole = calc.mul(calc.unary("SIGN", quotient), calc.unary("FLOOR", calc.unary("ABS", quotient)))
        result = calc.sub(a, calc.mul(b, whole))
    else:
        op.refuse("TFLite has no remainder of integers with the dividend's sign")
    op.write(op.graph.cast(result, op.result_type()), op.planned_layout())
