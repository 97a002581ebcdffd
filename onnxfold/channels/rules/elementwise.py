"""Operators that act on each element separately."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Role
from onnxfold.channels.registry import Result, channel_rule

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


@channel_rule("PRelu", result=Result.IN_PLACE)
def prelu(node: NodeContext) -> None:
    """Let the slope broadcast to the input."""
    node.link_all(node.input(0), node.output())
    node.link_broadcast(node.input(1), node.output(), Role.PARAMETER)
