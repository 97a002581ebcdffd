"""Reasons why weights lie in no group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from onnxfold import api
from onnxfold.channels.declarations import Role
from onnxfold.channels.layers import linear_weights
from onnxfold.graph.view import GraphView

RECURRENT: Final = frozenset({"LSTM", "GRU", "RNN"})


def held_back(
    view: GraphView, found: api.Inspection, covered: Mapping[tuple[str, Role], float]
) -> list[tuple[str, float]]:
    """Return why weights lie in no group, on their output and on their input axis, largest share first."""
    shares: Counter[str] = Counter()
    for weight in linear_weights(view):
        free = 1.0 - max(covered.get((weight, role), 0.0) for role in (Role.PRODUCER, Role.CONSUMER))
        if free > 1e-9:
            why = [f"{r.axis.split(' ')[0]}: {general(r.reason)}" for r in found.refusals if r.weight == weight]
            ops = "/".join(sorted({n.op_type for n in view.consumers(weight)}))
            text = "; ".join(dict.fromkeys(why)) or "no refusal given"
            shares[f"{ops} weight, {text}"] += free * view.weight_size(weight) / max(found.share.weights, 1)  # type: ignore[assignment]
    return [(reason, float(share)) for reason, share in shares.most_common()]


def general(reason: str) -> str:
    """Take names of nodes and tensors out of a reason."""
    return re.sub(r" '[^']*'", "", reason)
