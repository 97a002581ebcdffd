"""Einsum of one or two operands."""

from onnxfold.channels.context import CannotDeclareError, NodeContext
from onnxfold.channels.declarations import Axis, Role
from onnxfold.channels.registry import channel_rule

_MIXES = "it sums over this index of two activations, where a merged channel would count only once"


@channel_rule("Einsum", mixes=_MIXES)
def einsum(node: NodeContext) -> None:
    """Follow each index letter from the operands to the result.

    A letter of the result passes through, and is produced by a constant operand that has it. A letter
    that is summed over is consumed where exactly one of two operands is constant.
    """
    attribute = node.value("equation", b"")
    equation = (attribute.decode() if isinstance(attribute, bytes) else str(attribute)).replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) > 2 or any(len(set(t)) != len(t) for t in [*terms, result]):
        raise CannotDeclareError(f"the equation '{equation}' is not followed: only plain products of two operands are")
    operands = list(zip(node.inputs, terms, strict=True))
    for tensor, term in operands:
        for axis, letter in enumerate(term):
            if letter not in result:
                continue
            target = Axis(node.output(), result.index(letter))
            if node.is_weight(tensor):
                node.use(Axis(tensor, axis), Role.PRODUCER, target)
            else:
                node.link(Axis(tensor, axis), target)
    if len(operands) == 2 and sum(node.is_weight(t) for t, _ in operands) == 1:
        (weight, weight_term), (other, other_term) = sorted(operands, key=lambda o: not node.is_weight(o[0]))
        for axis, letter in enumerate(weight_term):
            if letter in other_term and letter not in result:
                node.use(Axis(weight, axis), Role.CONSUMER, Axis(other, other_term.index(letter)))
    elif not any(node.is_weight(t) for t, _ in operands):
        for tensor, term in operands:  # said here, because both operands may be one tensor
            for axis in (i for i, letter in enumerate(term) if letter not in result):
                node.block(Axis(tensor, axis), _MIXES)
