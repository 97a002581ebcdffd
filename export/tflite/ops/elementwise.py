"""Operators of one input that act on each element separately; Cast."""

import math
from collections.abc import Callable

from onnxfold.export.tflite.calculator import Calculator
from onnxfold.export.tflite.context import Op
from onnxfold.export.tflite.graph import Value
from onnxfold.export.tflite.layout_rules import Follow
from onnxfold.export.tflite.registry import converter

_SAME = {
    "Relu": "RELU",
    "Sigmoid": "LOGISTIC",
    "Tanh": "TANH",
    "HardSwish": "HARD_SWISH",
    "Exp": "EXP",
    "Log": "LOG",
    "Sqrt": "SQRT",
    "Abs": "ABS",
    "Neg": "NEG",
    "Floor": "FLOOR",
    "Ceil": "CEIL",
    "Round": "ROUND",
    "Sin": "SIN",
    "Cos": "COS",
    "Sign": "SIGN",
    "Not": "LOGICAL_NOT",
}


@converter(*_SAME, layouts=Follow(elementwise=True))
def same_operator(op: Op) -> None:
    """The TFLite operator of the same meaning."""
    x, layout = op.read(0, op.planned_layout()), op.planned_layout()
    op.write(op.graph.op(_SAME[op.op_type], [x], x.shape), layout)


@converter("Identity", layouts=Follow(elementwise=True))
def identity(op: Op) -> None:
    """Nothing."""
    op.write(op.read(0, op.planned_layout()), op.planned_layout())


@converter("LeakyRelu", layouts=Follow(elementwise=True))
def leaky_relu(op: Op) -> None:
    """LEAKY_RELU."""
    x = op.read(0, op.planned_layout())
    op.write(op.graph.op("LEAKY_RELU", [x], x.shape, alpha=op.number("alpha", 0.01)), op.planned_layout())


@converter("PRelu", layouts=Follow(elementwise=True))
def prelu(op: Op) -> None:
    """PRELU."""
    x = op.read(0, op.planned_layout())
    op.write(op.graph.op("PRELU", [x, op.operand(1, op.planned_layout())], x.shape), op.planned_layout())


@converter("Gelu", layouts=Follow(elementwise=True))
def gelu(op: Op) -> None:
    """GELU, exact or by tanh."""
    x = op.read(0, op.planned_layout())
    approximate = op.text("approximate", "none") == "tanh"
    op.write(op.graph.op("GELU", [x], x.shape, approximate=approximate), op.planned_layout())


def _write(op: Op, calculate: Callable[[Calculator, Value], Value]) -> None:
    calc = Calculator(op.graph)
    op.write(calculate(calc, op.read(0, op.planned_layout())), op.planned_layout())


@converter("HardSigmoid", layouts=Follow(elementwise=True))
def hard_sigmoid(op: Op) -> None:
    """Clip(alpha x + beta, 0, 1); with RELU6 where alpha is 1/6."""
    alpha, beta = op.number("alpha", 0.2), op.number("beta", 0.5)

    def calculate(c: Calculator, x: Value) -> Value:
        if math.isclose(alpha, 1 / 6, rel_tol=1e-6):
            return c.mul(c.unary("RELU6", c.add(x, beta / alpha)), alpha)
        return c.clip(c.add(c.mul(x, alpha), beta), 0.0, 1.0)

    _write(op, calculate)


@converter("Elu", layouts=Follow(elementwise=True))
def elu(op: Op) -> None:
    """ELU; for another alpha than 1 the negative part is scaled."""
    alpha = op.number("alpha", 1.0)
    _write(op, lambda c, x: c.unary("ELU", x) if alpha == 1.0 else c.elu(x, alpha))


@converter("Celu", layouts=Follow(elementwise=True))
def celu(op: Op) -> None:
    """max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    alpha = op.number("alpha", 1.0)
    _write(op, lambda c, x: c.mul(c.unary("ELU", c.mul(x, 1 / alpha)), alpha))


@converter("Selu", layouts=Follow(elementwise=True))
def selu(op: Op) -> None:
    """Gamma ELU(x) with scaled negative part."""
    alpha, gamma = op.number("alpha", 1.67326319217681884765625), op.number("gamma", 1.05070102214813232421875)
    _write(op, lambda c, x: c.mul(c.elu(x, alpha), gamma))


@converter("Softplus", layouts=Follow(elementwise=True))
def softplus(op: Op) -> None:
    """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
    _write(op, lambda c, x: c.softplus(x))


@converter("Mish", layouts=Follow(elementwise=True))
def mish(op: Op) -> None:
    """X tanh(softplus(x))."""
    _write(op, lambda c, x: c.mul(x, c.unary("TANH", c.softplus(x))))


@converter("Softsign", layouts=Follow(elementwise=True))
def softsign(op: Op) -> None:
    """X / (1 + |x|)."""
    _write(op, lambda c, x: c.div(x, c.add(c.unary("ABS", x), 1.0)))


@converter("Swish", layouts=Follow(elementwise=True))
def swish(op: Op) -> None:
    """X sigmoid(alpha x)."""
    alpha = op.number("alpha", 1.0)
    _write(op, lambda c, x: c.mul(x, c.unary("LOGISTIC", x if alpha == 1.0 else c.mul(x, alpha))))


@converter("ThresholdedRelu", layouts=Follow(elementwise=True))
def thresholded_relu(op: Op) -> None:
    """X where x > alpha, else 0."""
    alpha = op.number("alpha", 1.0)
    _write(op, lambda c, x: c.select(c.greater(x, alpha), x, 0.0))


@converter("Reciprocal", layouts=Follow(elementwise=True))
def reciprocal(op: Op) -> None:
    """1 / x."""
    _write(op, lambda c, x: c.div(1.0, x))


@converter("Erf", layouts=Follow(elementwise=True))
def erf(op: Op) -> None:
    """Erf through GELU: 2 gelu(z) / z - 1 with z = sqrt(2) x; around 0, where that is 0 / 0, its tangent."""

    def calculate(c: Calculator, x: Value) -> Value:
        near = c.greater(1e-3, c.unary("ABS", x))
        z = c.select(near, 1.0, c.mul(x, math.sqrt(2)))
        far = c.add(c.mul(c.div(c.unary("GELU", z), z), 2.0), -1.0)
        return c.select(near, c.mul(x, 2 / math.sqrt(math.pi)), far)

    _write(op, calculate)


@converter("Clip", layouts=Follow(elementwise=True))
def clip(op: Op) -> None:
    """RELU, RELU6, RELU_N1_TO_1 where the limits are theirs, else MAXIMUM and MINIMUM."""
    layout = op.planned_layout()
    calc = Calculator(op.graph)
    x = op.read(0, layout)
    limits: list[float | Value | None] = []
    for index, name in ((1, "min"), (2, "max")):
        if op.has_attribute(name):
            limits.append(op.number(name, 0.0))
        elif op.is_constant(index):
            limits.append(op.required_weight(index, name).reshape(-1)[0].item())
        else:
            limits.append(op.operand(index, layout) if op.has_input(index) else None)
    op.write(calc.limit(x, *limits), layout)


@converter("Cast", layouts=Follow(elementwise=True))
def cast(op: Op) -> None:
    """CAST between the element types that TFLite has; other floats are float32 throughout the file."""
    x = op.read(0, op.planned_layout())
    wanted = op.result_type()
    if wanted == "BOOL" and x.element_type != "BOOL":
        op.write(Calculator(op.graph).binary("NOT_EQUAL", x, 0, "BOOL"), op.planned_layout())
    else:
        op.write(op.graph.cast(x, wanted), op.planned_layout())
