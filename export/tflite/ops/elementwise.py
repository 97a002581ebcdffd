"""Operators that act on each element separately: of one input, of several; Cast."""

import math
from collections.abc import Callable

import numpy as np

from onnxfold.export.tflite.context import WIDER, Calculator, Op, converter
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout import ELEMENTWISE

#: A result computed from the first input.
Formula = Callable[[Op, Calculator, Value], Value]

_SAME = {
    "Relu": "RELU", "Sigmoid": "LOGISTIC", "Tanh": "TANH", "HardSwish": "HARD_SWISH", "Exp": "EXP", "Log": "LOG",
    "Sqrt": "SQRT", "Abs": "ABS", "Neg": "NEG", "Floor": "FLOOR", "Ceil": "CEIL", "Round": "ROUND", "Sin": "SIN",
    "Cos": "COS", "Sign": "SIGN", "Not": "LOGICAL_NOT",
}  # fmt: skip


def _hard_sigmoid(op: Op, c: Calculator, x: Value) -> Value:
    alpha, beta = op.number("alpha", 0.2), op.number("beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6):
        return c.mul(c.unary("RELU6", c.add(x, beta / alpha)), alpha)
    return c.limit(c.add(c.mul(x, alpha), beta), 0.0, 1.0)


def _elu(op: Op, c: Calculator, x: Value) -> Value:
    alpha = op.number("alpha", 1.0)
    return c.unary("ELU", x) if alpha == 1.0 else c.elu(x, alpha)


def _celu(op: Op, c: Calculator, x: Value) -> Value:
    alpha = op.number("alpha", 1.0)
    return c.mul(c.unary("ELU", c.mul(x, 1 / alpha)), alpha)


def _selu(op: Op, c: Calculator, x: Value) -> Value:
    alpha, gamma = op.number("alpha", 1.67326319217681884765625), op.number("gamma", 1.05070102214813232421875)
    return c.mul(c.elu(x, alpha), gamma)


def _swish(op: Op, c: Calculator, x: Value) -> Value:
    alpha = op.number("alpha", 1.0)
    return c.mul(x, c.unary("LOGISTIC", x if alpha == 1.0 else c.mul(x, alpha)))


def _erf(op: Op, c: Calculator, x: Value) -> Value:
    near = c.greater(1e-3, c.unary("ABS", x))
    z = c.select(near, 1.0, c.mul(x, math.sqrt(2)))
    far = c.add(c.mul(c.div(c.unary("GELU", z), z), 2.0), -1.0)
    return c.select(near, c.mul(x, 2 / math.sqrt(math.pi)), far)


def _clip(op: Op, c: Calculator, x: Value) -> Value:
    limits: list[float | Value | None] = []
    for index, name in ((1, "min"), (2, "max")):
        if op.has_attribute(name):
            limits.append(op.number(name, 0.0))
        elif op.is_constant(index):
            limits.append(op.required_weight(index, name).reshape(-1)[0].item())
        else:
            limits.append(op.operand(index) if op.has_input(index) else None)
    return c.limit(x, *limits)


def _cast(op: Op, c: Calculator, x: Value) -> Value:
    wanted = op.result_type()
    if wanted == "BOOL" and x.element_type != "BOOL":
        return c.binary("NOT_EQUAL", x, 0, "BOOL")
    return op.graph.cast(x, wanted)


#: Operators -> how they are written, in words, and what writes them.
_FORMULAS: dict[tuple[str, ...], tuple[str, Formula]] = {
    tuple(_SAME): ("The TFLite operator of the same meaning.", lambda op, c, x: c.unary(_SAME[op.op_type], x)),
    ("Identity",): ("Nothing.", lambda op, c, x: x),
    ("LeakyRelu",): ("LEAKY_RELU.", lambda op, c, x: c.unary("LEAKY_RELU", x, alpha=op.number("alpha", 0.01))),
    ("PRelu",): ("PRELU.", lambda op, c, x: op.graph.op("PRELU", [x, op.operand(1)], x.shape)),
    ("Gelu",): (
        "GELU, exact or by tanh.",
        lambda op, c, x: c.unary("GELU", x, approximate=op.text("approximate", "none") == "tanh"),
    ),
    ("HardSigmoid",): ("Clip(alpha x + beta, 0, 1); with RELU6 where alpha is 1/6.", _hard_sigmoid),
    ("Elu",): ("ELU; for another alpha than 1 the negative part is scaled.", _elu),
    ("Celu",): ("max(0, x) + min(0, alpha (exp(x / alpha) - 1)).", _celu),
    ("Selu",): ("Gamma ELU(x) with scaled negative part.", _selu),
    ("Softplus",): ("max(x, 0) + log(1 + exp(-|x|)), which does not overflow.", lambda op, c, x: c.softplus(x)),
    ("Mish",): ("X tanh(softplus(x)).", lambda op, c, x: c.mul(x, c.unary("TANH", c.softplus(x)))),
    ("Softsign",): ("X / (1 + |x|).", lambda op, c, x: c.div(x, c.add(c.unary("ABS", x), 1.0))),
    ("Swish",): ("X sigmoid(alpha x).", _swish),
    ("ThresholdedRelu",): (
        "X where x > alpha, else 0.",
        lambda op, c, x: c.select(c.greater(x, op.number("alpha", 1.0)), x, 0.0),
    ),
    ("Reciprocal",): ("1 / x.", lambda op, c, x: c.div(1.0, x)),
    ("Erf",): (
        "Erf through GELU: 2 gelu(z) / z - 1 with z = sqrt(2) x; around 0, where that is 0 / 0, its tangent.",
        _erf,
    ),
    ("Clip",): ("RELU, RELU6, RELU_N1_TO_1 where the limits are theirs, else MAXIMUM and MINIMUM.", _clip),
    ("Cast",): ("CAST between the element types that TFLite has; other floats are float32 throughout the file.", _cast),
}


def _register(op_types: tuple[str, ...], how: str, formula: Formula) -> None:
    def write(op: Op) -> Value:
        return formula(op, op.graph, op.read(0))

    write.__doc__ = how
    converter(*op_types, layouts=ELEMENTWISE)(write)


for _op_types, _row in _FORMULAS.items():
    _register(_op_types, *_row)


_NUMBERS = ("FLOAT32", "INT32", "INT64")
#: Operator -> its code in TFLite, and the types that its kernels compute in.
_BINARY: dict[str, tuple[str, tuple[str, ...]]] = {
    "Add": ("ADD", _NUMBERS), "Sub": ("SUB", _NUMBERS), "Mul": ("MUL", _NUMBERS), "Div": ("DIV", _NUMBERS[:2]),
    "Max": ("MAXIMUM", _NUMBERS), "Min": ("MINIMUM", _NUMBERS), "Sum": ("ADD", _NUMBERS[:1]),
    "Mean": ("ADD", _NUMBERS[:1]),
    "Equal": ("EQUAL", (*_NUMBERS, "BOOL")), "Greater": ("GREATER", _NUMBERS), "Less": ("LESS", _NUMBERS),
    "GreaterOrEqual": ("GREATER_EQUAL", _NUMBERS), "LessOrEqual": ("LESS_EQUAL", _NUMBERS),
    "And": ("LOGICAL_AND", ("BOOL",)), "Or": ("LOGICAL_OR", ("BOOL",)), "Xor": ("NOT_EQUAL", ("BOOL",)),
}  # fmt: skip


def _operands(op: Op, types: tuple[str, ...]) -> list[Value]:
    """Return all inputs in the first type, their own or a wider one, that the kernels have; positions in 32 bits."""
    own = op.element_type()
    wide = own if own in types else WIDER.get(own, "INT32" if own == "INT64" else own)
    if wide not in types:
        op.refuse(f"TFLite computes it in {', '.join(types)}, not in {own}")
    return [op.graph.cast(op.operand(i), wide) for i in range(len(op.node.input))]


@converter(*_BINARY, layouts=ELEMENTWISE)
def binary(op: Op) -> Value:
    """One TFLite operator per pair; small integers are computed and compared in 32 bits."""
    code, types = _BINARY[op.op_type]
    result, *others = _operands(op, types)
    for other in others:
        result = op.graph.binary(code, result, other, "BOOL" if op.result_type() == "BOOL" else "")
    if op.op_type == "Mean" and others:
        result = op.graph.mul(result, 1 / (1 + len(others)))
    return op.graph.cast(result, op.result_type())


@converter("Where", layouts=ELEMENTWISE)
def where(op: Op) -> Value:
    """SELECT_V2."""
    condition, a, b = map(op.operand, range(3))
    return op.graph.select(condition, a, b)


_POWERS: dict[float | None, Callable[[Calculator, Value], Value]] = {
    1.0: lambda c, x: x,
    2.0: lambda c, x: c.mul(x, x),
    3.0: lambda c, x: c.mul(c.mul(x, x), x),
    0.5: lambda c, x: c.unary("SQRT", x),
    -0.5: lambda c, x: c.unary("RSQRT", x),
    -1.0: lambda c, x: c.div(1.0, x),
}


@converter("Pow", layouts=ELEMENTWISE)
def power(op: Op) -> Value:
    """Products and roots for the usual constant exponents, else POW."""
    layout, result_type = op.layout, op.result_type()
    exponent = op.required_weight(1, "exponent").reshape(-1) if op.is_constant(1) else np.zeros(0)
    number = float(exponent[0]) if exponent.size == 1 and len(op.shape(1)) <= len(op.shape(0)) else None
    base = op.operand(0, layout)
    if result_type == "FLOAT32" and number in _POWERS:
        return _POWERS[number](op.graph, base)
    own = (op.element_type(0), op.element_type(1))
    wide = "FLOAT32" if "FLOAT32" in own or "INT64" in own or "UINT32" in own else "INT32"
    if "UINT64" in own:
        op.refuse("TFLite does not compute with 64-bit unsigned integers")
    a, b = (op.graph.cast(v, wide) for v in (base, op.operand(1, layout)))
    return op.graph.cast(op.graph.binary("POW", a, b), result_type)


@converter("Mod", layouts=ELEMENTWISE)
def modulo(op: Op) -> Value:
    """FLOOR_MOD, whose sign is the divisor's; with fmod, whose sign is the dividend's, a - b trunc(a / b)."""
    calc = op.graph
    a, b = _operands(op, _NUMBERS)
    if not op.integer("fmod", 0):
        result = calc.binary("FLOOR_MOD", a, b)
    elif a.element_type == "FLOAT32":
        quotient = calc.div(a, b)
        whole = calc.mul(calc.unary("SIGN", quotient), calc.unary("FLOOR", calc.unary("ABS", quotient)))
        result = calc.sub(a, calc.mul(b, whole))
    else:
        op.refuse("TFLite has no remainder of integers with the dividend's sign")
    return op.graph.cast(result, op.result_type())
