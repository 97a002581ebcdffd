"""Inspection of a model: its fold groups, and the reasons why other axes stay."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxfold.budget.costs.weights import count_parameters
from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Role
from onnxfold.channels.share import WeightShare, weight_share
from onnxfold.channels.walker import node_name
from onnxfold.config.checks import known_keywords
from onnxfold.folding.scopes import all_groups, all_refusals, open_scopes
from onnxfold.graph.load import ModelLike, blames_broken_files, load
from onnxfold.graph.view import GraphView
from onnxfold.report import Refusal


@dataclass(frozen=True)
class Inspection:
    """Fold groups, refusals and shares of a model.

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
    notes : list of str
        What was changed on loading.
    """

    groups: list[FoldGroup]
    refusals: list[Refusal]
    share: WeightShare
    parameters: int
    _rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: groups with producers, consumers, width and weights; refusals; shares."""
        return {
            "parameters": self.parameters,
            "share": asdict(self.share),
            "groups": self._rows,
            "refusals": [asdict(r) for r in self.refusals],
            "notes": self.notes,
        }


@known_keywords
@blames_broken_files
def inspect_model(model: ModelLike, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Inspection:
    """Return fold groups, refusals with reasons, and the share of the weights in groups."""
    view = load(model, input_shapes)
    parameters = count_parameters(view)
    scopes = open_scopes(view)
    share, held = weight_share([(scope.view, scope.analysis.groups) for scope in scopes])
    owners = [(scope.view, group) for scope in scopes for group in scope.analysis.groups]
    rows = [_row(view, group, weights, parameters) for (view, group), weights in zip(owners, held, strict=True)]
    return Inspection(all_groups(scopes), all_refusals(scopes), share, parameters, rows, view.notes)


def _row(view: GraphView, group: FoldGroup, weights: int, parameters: int) -> dict[str, Any]:
    readers = [node_name(view, use.node) for member in group.with_role(Role.CONSUMER) for use in member.uses]
    return {
        "name": group.name,
        "width": group.size,
        "blocks": group.block_count,
        "weights": weights,
        "share": weights / parameters if parameters else 0.0,
        "producers": list(group.nodes),
        "consumers": list(dict.fromkeys(readers)),
    }
