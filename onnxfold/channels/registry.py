"""Registry of channel rules, resolved by operator version."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from onnxfold.channels.context import NodeContext
from onnxfold.channels.declarations import Computation
from onnxfold.graph.registry import OperatorRegistry

RuleFunction = Callable[[NodeContext], None]
ComputesFunction = Callable[[NodeContext], Computation | None]


class Result(Enum):
    """Where a node's first result lies in memory."""

    NEW = "new"  #: in memory of its own
    IN_PLACE = "in place"  #: over an operand of its size that nobody else needs: elements are computed one by one
    VIEW = "view"  #: in its first input: the same bytes under another shape


@dataclass(frozen=True)
class ChannelRule:
    """A rule, the words for the axes it does not mention, and what the operator computes."""

    op_type: str
    since: int
    declare: RuleFunction
    mixes: str
    computes: ComputesFunction | None = None
    result: Result = Result.NEW
    carries: bool = False


_RULES = OperatorRegistry[ChannelRule]("a channel rule")
find_rule = _RULES.find


def channel_rule(
    *op_types: str,
    since: int = 1,
    domain: str = "",
    mixes: str = "it mixes the positions of this axis",
    computes: ComputesFunction | None = None,
    result: Result = Result.NEW,
    carries: bool = False,
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
    computes : callable, optional
        Returns what a node computes, a :data:`~onnxfold.channels.declarations.Computation`; reads attributes and
        constants only, and leaves out what these do not tell.
    result : Result
        Where the node's first result may lie in memory.
    carries : bool
        Whether the node moves and adds values only: along an axis that it carries over whole, any basis will do.

    Raises
    ------
    ValueError
        If the operator version already has a rule.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for op_type in op_types:
            rule = ChannelRule(op_type, since, function, mixes, computes, result, carries)
            _RULES.add(op_type, rule, since=since, domain=domain)
        return function

    return register


def all_rules() -> list[tuple[str, ChannelRule]]:
    """Return every rule with its domain, for documentation and contract tests."""
    return [(domain, rule) for domain, _, rule in _RULES]
