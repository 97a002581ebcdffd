"""A look at a model: what can be folded, and why the rest cannot."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onnxfold.budget.weights import count_parameters
from onnxfold.channels import FoldGroup, find_groups
from onnxfold.channels.declarations import Role
from onnxfold.channels.share import WeightShare, weight_share
from onnxfold.channels.walker import node_name
from onnxfold.graph.load import ModelLike, load
from onnxfold.passes.normalize import NORMALIZE
from onnxfold.report import Refusal


@dataclass(frozen=True)
class Inspection:
    """What a look at a model finds.

    Attributes
    ----------
    groups : list of FoldGroup
        In the order of their first producer.
    refusals : list of Refusal
        Weight axes that stay, those that hold back most weights first.
    share : WeightShare
        How much of the conv/linear weights lies in groups.
    parameters : int
        Float weights of the model.
    """

    groups: list[FoldGroup]
    refusals: list[Refusal]
    share: WeightShare
    parameters: int
    _rows: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: groups with producers, consumers, width and weights; refusals; shares."""
        return {
            "parameters": self.parameters,
            "share": asdict(self.share),
            "groups": self._rows,
            "refusals": [asdict(r) for r in self.refusals],
        }


def inspect_model(model: ModelLike, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Inspection:
    """Return fold groups, refusals with reasons, and the share of the weights in groups."""
    view = load(model, input_shapes)
    parameters = count_parameters(view)
    NORMALIZE(view)
    analysis = find_groups(view)
    share, held = weight_share(view, analysis.groups)
    rows = [
        {
            "name": group.name,
            "width": group.size,
            "blocks": group.block_count,
            "weights": held[group.name],
            "share": held[group.name] / parameters if parameters else 0.0,
            "producers": list(group.nodes),
            "consumers": list(
                dict.fromkeys(node_name(view, u.node) for m in group.with_role(Role.CONSUMER) for u in m.uses)
            ),
        }
        for group in analysis.groups
    ]
    return Inspection(analysis.groups, analysis.refusals, share, parameters, rows)
