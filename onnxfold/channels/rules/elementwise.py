"""Operators that act on each element separately, of one operand or of several with broadcasting."""

from onnx import NodeProto

from onnxfold.channels.context import CannotDeclareError, NodeContext, Result, channel_rule
from onnxfold.channels.declarations import Role, Shift

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Clip",
    "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign",
    "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
)  # fmt: skip


@channel_rule("Identity", result=Result.VIEW, carries=True)
@channel_rule(*(op for op in UNARY if op != "Identity"), result=Result.IN_PLACE)
def unary(node: NodeContext) -> None:
    """Every axis of the result is the same axis of the input; bounds and the like are scalars."""
    node.link_all(node.input(0), node.output())


@channel_rule("CastLike")
def cast_like(node: NodeContext) -> None:
    """Only the type of the second input matters; its axes are tied to nothing."""
    node.link_all(node.input(0), node.output())
    node.ignore(node.input(1))


@channel_rule("Dropout", result=Result.VIEW)
def dropout(node: NodeContext) -> None:
    """Identity at inference; the mask has the same axes."""
    training = node.constant(2)
    if node.input(2) and (training is None or bool(training.reshape(-1)[0])):
        raise CannotDeclareError("it is in training mode; export the model in evaluation mode")
    for output in filter(None, node.outputs):
        node.link_all(node.input(0), output)


_IN_PLACE = ("Div", "Max", "Min", "Mul", "Pow")
_NEW = (
    "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Mean", "Mod", "Or", "Sum", "Where", "Xor",
)  # fmt: skip
BROADCASTS = ("Add", "Sub", *_IN_PLACE, *_NEW)


def addition(node: NodeContext) -> Shift | None:
    """Two operands, of which one is constant."""
    constants = [name for name in node.inputs if node.is_weight(name)]
    return Shift(constants[0]) if len(constants) == 1 else None


@channel_rule("Add", computes=addition, result=Result.IN_PLACE)
@channel_rule("Sub", result=Result.IN_PLACE)
def additive(node: NodeContext) -> None:
    """Treat a constant operand as a bias; axes along which nothing stretches may be rotated."""
    for operand in node.inputs:
        node.link_broadcast(operand, node.output(), Role.BIAS)
    shapes = [node.shape(operand) for operand in node.inputs]
    for i in range(1, min(map(len, shapes)) + 1):
        if all(shape[-i] == node.shape(node.output())[-i] for shape in shapes):
            for tensor in (*node.inputs, node.output()):
                node.rotatable(node.axis(tensor, -i))


@channel_rule(*_IN_PLACE, "PRelu", result=Result.IN_PLACE)
@channel_rule(*_NEW)
def broadcast(node: NodeContext) -> None:
    """Equal positions of all operands and of the result are one channel; a constant operand is a parameter."""
    for operand in node.inputs:
        node.link_broadcast(operand, node.output(), Role.PARAMETER)


@channel_rule("BiasGelu", "FastGelu", "QuickGelu", domain="com.microsoft")
@channel_rule("Gelu", domain="com.microsoft", result=Result.IN_PLACE)
def gelu(node: NodeContext) -> None:
    """Elementwise, some with a bias along the last axis."""
    node.link_all(node.input(0), node.output())
    if node.input(1):
        node.link_broadcast(node.input(1), node.output(), Role.BIAS)


@channel_rule("QuantizeLinear", "DequantizeLinear")
def quantize(node: NodeContext) -> None:
    """One scale for the whole tensor is an elementwise map; integers that were not opened as numbers stay."""
    if node.is_weight(node.input(0)):
        raise CannotDeclareError("the weight is quantised: fold the float model, then quantise it")
    scale = node.view.shape(node.input(1))
    if scale is None or any(d != 1 for d in scale):
        raise CannotDeclareError("it has one fixed scale per channel")
    node.link_all(node.input(0), node.output())


#: Operators that compute every channel from itself alone, and zeros from zeros.
KEEP_ZERO = frozenset({
    "Abs", "AveragePool", "Cast", "Celu", "Dropout", "Elu", "Erf", "Flatten", "Gelu", "GlobalAveragePool",
    "GlobalMaxPool", "HardSwish", "Identity", "LeakyRelu", "MaxPool", "Mish", "Mul", "Neg", "PRelu", "ReduceMax",
    "ReduceMean", "ReduceSum", "Reshape", "Selu", "Sign", "Softsign", "Sqrt", "Squeeze", "Sum", "Tanh", "Transpose",
    "Unsqueeze",
})  # fmt: skip
#: Operators that compute every channel from itself alone.
PASS = KEEP_ZERO | {
    "Add", "BatchNormalization", "Clip", "Concat", "Div", "Exp", "Expand", "HardSigmoid", "Pad", "Pow", "Relu",
    "Resize", "Sigmoid", "Slice", "Softplus", "Split", "Sub", "Where",
}  # fmt: skip
PRODUCERS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def is_sum(node: NodeProto) -> bool:
    """Whether a node adds its inputs."""
    return node.op_type == "Add"
