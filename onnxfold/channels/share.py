"""Share of a model's weights that lies in fold groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.channels.declarations import Role
from onnxfold.channels.group import FoldGroup
from onnxfold.channels.layers import linear_weights
from onnxfold.graph.view import GraphView


@dataclass(frozen=True)
class WeightShare:
    """Shares of the weights of linear operators (Conv, ConvTranspose, Gemm, MatMul and their like), in [0, 1].

    `outputs` and `inputs` are the shares whose output or input axis lies in fold groups (weights without
    an input axis, depthwise filters, count for the outputs only); `either` is the share for which
    at least one of them does.
    """

    outputs: float
    inputs: float
    either: float
    weights: int


def weight_share(graphs: Sequence[tuple[GraphView, Sequence[FoldGroup]]]) -> tuple[WeightShare, list[int]]:
    """Return the shares over several graphs, and the number of weights on each group's channels."""
    sizes: list[tuple[int, bool, float, float]] = []
    held: list[int] = []
    for view, groups in graphs:
        covered: dict[tuple[str, Role], float] = {}
        spare: dict[str, None] = {}
        for group in groups:
            held.append(0)
            spare |= dict.fromkeys(group.seam.spare)
            for member in group.members:
                if member.role not in (Role.PRODUCER, Role.CONSUMER):
                    continue
                name = member.axis.tensor
                part = member.positions.size / (view.weights[name].shape[member.axis.axis] * member.axis.blocks)
                # Identity matrices that are not needed yet are no weights of the model.
                held[-1] += 0 if name in group.seam.spare else round(view.weight_size(name) * part)
                if name in group.seam.spare or not group.seam.spare:
                    covered[name, member.role] = min(1.0, covered.get((name, member.role), 0.0) + part)
        for name, is_depthwise in linear_weights(view).items():
            if name in spare:
                continue
            out, into = (covered.get((name, role), 0.0) for role in (Role.PRODUCER, Role.CONSUMER))
            sizes.append((view.weight_size(name), is_depthwise, out, into))
    total = sum(size for size, *_ in sizes)
    dense = sum(size for size, is_depthwise, *_ in sizes if not is_depthwise)
    share = WeightShare(
        outputs=sum(size * out for size, _, out, _ in sizes) / max(total, 1),
        inputs=sum(size * into for size, is_depthwise, _, into in sizes if not is_depthwise) / max(dense, 1),
        either=sum(size * max(out, into) for size, _, out, into in sizes) / max(total, 1),
        weights=total,
    )
    return share, held
