"""Operators of several inputs that broadcast."""

import numpy as np

from onnxfold.export.tflite.calculator import WIDER, Calculator
from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout_rules import Follow
from onnxfold.export.tflite.registry import converter

_ARITHMETIC = {
    "Add": ("ADD", ("FLOAT32", "INT32", "INT64")),
    "Sub": ("SUB", ("FLOAT32", "INT32", "INT64")),
    "Mul": ("MUL", ("FLOAT32", "INT32", "INT64")),
    "Div": ("DIV", ("FLOAT32", "INT32")),
    "Max": ("MAXIMUM", ("FLOAT32", "INT32", "INT64")),
    "Min": ("MINIMUM", ("FLOAT32", "INT32", "INT64")),
    "Sum": ("ADD", ("FLOAT32",)),
    "Mean": ("ADD", ("FLOAT32",)),
}
_COMPARISONS = {
    "Equal": "EQUAL",
    "Greater": "GREATER",
    "GreaterOrEqual": "GREATER_EQUAL",
    "Less": "LESS",
    "LessOrEqual": "LESS_EQUAL",
}
_LOGICAL = {"And": "LOGICAL_AND", "Or": "LOGICAL_OR"}


def _operands(op: Op, types: tuple[str, ...]) -> list[Value]:
    """Return all inputs in the first type, their own or a wider one, that the kernels have."""
    own = op.element_type()
    wide = own if own in types else WIDER.get(own, own)
    if wide not in types:
        op.refuse(f"TFLite computes it in {', '.join(types)}, not in {own}")
    return [op.graph.cast(op.operand(i, op.planned_layout()), wide) for i in range(len(op.node.input))]


@converter(*_ARITHMETIC, layouts=Follow(elementwise=True))
def arithmetic(op: Op) -> None:
    """One TFLite operator per pair; small integers are computed in 32 bits."""
    code, types = _ARITHMETIC[op.op_type]
    calc = Calculator(op.graph)
    total, *others = _operands(op, types)
    for other in others:
        total = calc.binary(code, total, other)
    if op.op_type == "Mean" and others:
        total = calc.mul(total, 1 / (1 + len(others)))
    op.write(op.graph.cast(total, op.result_type()), op.planned_layout())


@converter(*_COMPARISONS, layouts=Follow(elementwise=True))
def comparison(op: Op) -> None:
    """A comparison; small integers are compared in 32 bits."""
    types = ("FLOAT32", "INT32", "INT64", *(("BOOL",) if op.op_type == "Equal" else ()))
    a, b = _operands(op, types)
    op.write(Calculator(op.graph).binary(_COMPARISONS[op.op_type], a, b, "BOOL"), op.planned_layout())


@converter(*_LOGICAL, layouts=Follow(elementwise=True))
def logical(op: Op) -> None:
    """LOGICAL_AND, LOGICAL_OR."""
    a, b = _operands(op, ("BOOL",))
    op.write(Calculator(op.graph).binary(_LOGICAL[op.op_type], a, b), op.planned_layout())


@converter("Xor", layouts=Follow(elementwise=True))
def xor(op: Op) -> None:
    """NOT_EQUAL."""
    a, b = _operands(op, ("BOOL",))
    op.write(Calculator(op.graph).binary("NOT_EQUAL", a, b), op.planned_layout())


@converter("Where", layouts=Follow(elementwise=True))
def where(op: Op) -> None:
    """SELECT_V2."""
    condition, a, b = (op.operand(i, op.planned_layout()) for i in range(3))
    op.write(Calculator(op.graph).select(condition, a, b), op.planned_layout())


@converter("Pow", layouts=Follow(elementwise=True))
def power(op: Op) -> None:
    """Products and roots for the usual constant exponents, else POW."""
    layout, calc = op.planned_layout(), Calculator(op.graph)
    result_type = op.result_type()
    exponent = op.required_weight(1, "exponent").reshape(-1) if op.is_constant(1) else np.zeros(0)
    number = float(exponent[0]) if exponent.size == 1 and len(op.shape(1)) <= len(op.shape(0)) else None
    base = op.operand(0, layout)
    if result_type == "FLOAT32" and number in _POWERS:
        op.write(_POWERS[number](calc, base), layout)
        return
    own = (op.element_type(0), op.element_type(1))
    wide = "FLOAT32" if "FLOAT32" in own or "INT64" in own or "UINT32" in own else "INT32"
    if "UINT64" in own:
        op.refuse("TFLite does not compute with 64-bit unsigned integers")
    a, b = (op.graph.cast(v, wide) for v in (base, op.operand(1, layout)))
    op.write(op.graph.cast(calc.binary("POW", a, b), result_type), layout)


_POWERS = {
    1.0: lambda c, x: x,
    2.0: lambda c, x: c.mul(x, x),
    3.0: lambda c, x: c.mul(c.mul(x, x), x),
    0.5: lambda c, x: c.unary("SQRT", x),
    -0.5: lambda c, x: c.unary("RSQRT", x),
    -1.0: lambda c, x: c.div(1.0, x),
}


@converter("Mod", layouts=Follow(elementwise=True))
def modulo(op: Op) -> None:
    """FLOOR_MOD, whose sign is the divisor's; with fmod, whose sign is the dividend's, a - b trunc(a / b)."""
    calc = Calculator(op.graph)
    a, b = _operands(op, ("FLOAT32", "INT32", "INT64"))
    if not op.integer("fmod", 0):
        result = calc.binary("FLOOR_MOD", a, b)
    elif a.element_type == "FLOAT32":
        quotient = calc.div(a, b)
        whole = calc.mul(calc.unary("SIGN", quotient), calc.unary("FLOOR", calc.unary("ABS", quotient)))
        result = calc.sub(a, calc.mul(b, whole))
    else:
        op.refuse("TFLite has no remainder of integers with the dividend's sign")
    op.write(op.graph.cast(result, op.result_type()), op.planned_layout())
