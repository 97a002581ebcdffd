"""How much of a model's weights can be folded."""

from dataclasses import dataclass

import numpy as np

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.channels.layers import LINEAR_OPS
from onnxfold.graph.view import GraphView


@dataclass(frozen=True)
class WeightShare:
    """Shares of the weights of Conv, ConvTranspose, Gemm and MatMul, in [0, 1].

    `outputs` and `inputs` are the shares whose output or input axis lies in fold groups (weights without
    an input axis, depthwise filters, count for the outputs only); `either` is the share for which
    at least one of them does.
    """

    outputs: float
    inputs: float
    either: float
    weights: int


def weight_share(view: GraphView, groups: list[FoldGroup]) -> tuple[WeightShare, dict[str, int]]:
    """Return the shares, and per group the number of weights on its channels."""
    covered: dict[tuple[str, Role], float] = {}
    per_group: dict[str, int] = {}
    for group in groups:
        held = 0
        for member in group.members:
            if member.role not in (Role.PRODUCER, Role.CONSUMER):
                continue
            name = member.axis.tensor
            width = view.weights[name].shape[member.axis.axis] * member.axis.blocks
            part = member.positions.size / width
            held += round(view.weight_size(name) * part)
            covered[name, member.role] = covered.get((name, member.role), 0.0) + part
        per_group[group.name] = held
    linear = dict.fromkeys(i for n in view.nodes if n.op_type in LINEAR_OPS for i in n.input[:2] if view.is_weight(i))
    total = sum(view.weight_size(n) for n in linear)
    with_inputs = [n for n in linear if not _is_depthwise(view, n)]

    def share(names: list[str], *roles: Role) -> float:
        size = sum(view.weight_size(n) for n in names)
        hit = sum(view.weight_size(n) * max(min(1.0, covered.get((n, r), 0.0)) for r in roles) for n in names)
        return hit / size if size else 0.0

    names = list(linear)
    result = WeightShare(
        outputs=share(names, Role.PRODUCER),
        inputs=share(with_inputs, Role.CONSUMER),
        either=share(names, Role.PRODUCER, Role.CONSUMER),
        weights=int(np.sum(total)),
    )
    return result, per_group


def _is_depthwise(view: GraphView, name: str) -> bool:
    shape = view.weights[name].shape
    return len(shape) > 2 and shape[1] == 1 and any(n.op_type == "Conv" for n in view.consumers(name))
