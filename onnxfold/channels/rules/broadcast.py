"""Elementwise operators of several operands with numpy broadcasting: residual Add, gates, constants."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.declarations import Role
from onnxfold.channels.operators import Shift
from onnxfold.channels.registry import Result, channel_rule

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
    _link_operands(node, Role.BIAS)
    shapes = [node.shape(operand) for operand in node.inputs]
    for i in range(1, min(map(len, shapes)) + 1):
        if all(shape[-i] == node.shape(node.output())[-i] for shape in shapes):
            for tensor in (*node.inputs, node.output()):
                node.rotatable(node.axis(tensor, -i))


@channel_rule(*_IN_PLACE, result=Result.IN_PLACE)
@channel_rule(*_NEW)
def broadcast(node: NodeContext) -> None:
    """Equal positions of all operands and of the result are one channel; a constant operand is a parameter."""
    _link_operands(node, Role.PARAMETER)


def _link_operands(node: NodeContext, role: Role) -> None:
    for operand in node.inputs:
        node.link_broadcast(operand, node.output(), role)
