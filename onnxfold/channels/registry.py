"""Registry of channel rules, resolved by operator version."""

from collections.abc import Callable
from dataclasses import dataclass

from onnxfold.channels.context import NodeContext
from onnxfold.graph.registry import OperatorRegistry

RuleFunction = Callable[[NodeContext], None]


@dataclass(frozen=True)
class ChannelRule:
    """A rule and the words for the axes it does not mention."""

    op_type: str
    since: int
    declare: RuleFunction
    mixes: str


_RULES = OperatorRegistry[ChannelRule]("a channel rule")
find_rule = _RULES.find


def channel_rule(
    *op_types: str, since: int = 1, domain: str = "", mixes: str = "it mixes the positions of this axis"
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule for operators.

    Parameters
    ----------
    *op_types : str
        ONNX operator names.
    since : int
        First version of the operator that the rule understands; it holds until a newer one is registered,
        as in :mod:`onnx.defs`.
    domain : str
        Operator domain.
    mixes : str
        Why axes that the rule does not mention must keep their width; shown to users.

    Raises
    ------
    ValueError
        If the operator version already has a rule.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for op_type in op_types:
            _RULES.add(op_type, ChannelRule(op_type, since, function, mixes), since=since, domain=domain)
        return function

    return register


def registered() -> list[tuple[str, ChannelRule]]:
    """Return every rule with its domain, for documentation and contract tests."""
    return [(domain, rule) for domain, _, rule in _RULES]
