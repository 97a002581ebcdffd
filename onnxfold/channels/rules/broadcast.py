"""Elementwise operators of several operands with numpy broadcasting: residual Add, gates, constants."""

from onnxfold.channels.context import NodeContext
from onnxfold.channels.declarations import Role
from onnxfold.channels.registry import channel_rule

_ADDITIVE = ("Add", "Sub")
_OTHERS = (
    "And", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sum", "Where", "Xor",
)  # fmt: skip


@channel_rule(*_ADDITIVE)
def additive(node: NodeContext) -> None:
    """Treat a constant operand as a bias."""
    _link_operands(node, Role.BIAS)


@channel_rule(*_OTHERS)
def broadcast(node: NodeContext) -> None:
    """Equal positions of all operands and of the result are one channel; a constant operand is a parameter."""
    _link_operands(node, Role.PARAMETER)


def _link_operands(node: NodeContext, role: Role) -> None:
    for operand in node.inputs:
        node.link_broadcast(operand, node.output(), role)
