"""Registry of channel rules, resolved by operator version."""

from collections.abc import Callable
from dataclasses import dataclass

from onnxfold.channels.context import NodeContext
from onnxfold.graph.view import DEFAULT_DOMAINS

RuleFunction = Callable[[NodeContext], None]


@dataclass(frozen=True)
class ChannelRule:
    """A rule and the words for the axes it does not mention."""

    op_type: str
    since: int
    declare: RuleFunction
    mixes: str


_RULES: dict[tuple[str, str], list[ChannelRule]] = {}


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
            rules = _RULES.setdefault((_canonical(domain), op_type), [])
            if any(rule.since == since for rule in rules):
                raise ValueError(f"operator {domain}::{op_type} version {since} already has a channel rule")
            rules.append(ChannelRule(op_type, since, function, mixes))
            rules.sort(key=lambda rule: rule.since)
        return function

    return register


def find_rule(domain: str, op_type: str, version: int) -> ChannelRule | None:
    """Return the newest rule that is not newer than the model's operator set."""
    rules = _RULES.get((_canonical(domain), op_type), [])
    return next((rule for rule in reversed(rules) if rule.since <= version), None)


def registered() -> list[tuple[str, ChannelRule]]:
    """Return every rule with its domain, for documentation and contract tests."""
    return [(domain, rule) for (domain, _), rules in sorted(_RULES.items()) for rule in rules]


def _canonical(domain: str) -> str:
    return "" if domain in DEFAULT_DOMAINS else domain
