"""Rules in turn, so that each is exercised, and operator sets in which they apply."""

from __future__ import annotations

import numpy as np
from onnx import defs

from onnxfold.channels import walker  # noqa: F401  (registers the rules)
from onnxfold.channels.context import ChannelRule, all_rules
from testing.random_graphs.common import MICROSOFT, NEWEST_OPSET, UNKNOWN_TO_ONNX

_RULES: list[tuple[str, ChannelRule]] = all_rules()
#: Operators of both domains.
_IN_BOTH = ("Attention", "Gelu", "RotaryEmbedding")


def block_name(domain: str, op: str) -> str:
    """Return the name that the blocks of an operator are registered under."""
    return f"{op}-microsoft" if domain == MICROSOFT and op in _IN_BOTH else op


def opsets_of(domain: str, rule: ChannelRule) -> list[int]:
    """The operator sets in which this very rule speaks for its operator."""
    newer = [r.since for d, r in _RULES if (d, r.op_type) == (domain, rule.op_type) and r.since > rule.since]
    found = []
    for opset in range(8, NEWEST_OPSET + 1):
        if domain or rule.op_type in UNKNOWN_TO_ONNX:
            found.append(opset)
            continue
        try:
            schema = defs.get_schema(rule.op_type, opset, "")
        except defs.SchemaError:
            continue
        if not schema.deprecated and opset >= rule.since and all(opset < n for n in newer):
            found.append(opset)
    return found


#: Rules of operators that some operator set of the generator has; Crop went with the experimental ones.
EXERCISED = [(domain, rule) for domain, rule in _RULES if opsets_of(domain, rule)]
#: Rules that do not speak in opset 17 come up three times as often, as nothing else exercises them.
FOCUS = EXERCISED + 2 * [(domain, rule) for domain, rule in EXERCISED if 17 not in opsets_of(domain, rule)]


def draw_opset(rng: np.random.Generator, allowed: list[int]) -> int:
    """Draw one of the operator sets; 17 most often."""
    weights = np.array([20.0 if o == 17 else 2.0 if 13 <= o <= 20 else 0.5 for o in allowed])
    return int(rng.choice(allowed, p=weights / weights.sum()))
