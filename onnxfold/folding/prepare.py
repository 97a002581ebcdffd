"""The values of a fold: a graph before its widths are known, its method settled, its duplicates found; and after."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxfold.budget.costs.weights import WeightCost
from onnxfold.channels import FoldGroup
from onnxfold.cluster.duplicates import find_duplicates, lossless_width
from onnxfold.cluster.partition import Labels
from onnxfold.cluster.plan import FoldPlan
from onnxfold.cluster.task import Candidates, Sources
from onnxfold.folding.methods import Method, Repair
from onnxfold.folding.open_model import OpenedModel, Scope, copy_scopes
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.machine.threads import ONE_BLAS_THREAD
from onnxfold.passes.merge.dead_to_duplicates import DeadToDuplicates
from onnxfold.report import PassRecord
from onnxfold.report.fold_report import GroupRecord
from onnxfold.report.records import Diagnostics


@dataclass(frozen=True, eq=False)
class Prepared:
    """A graph, and all that its fold does not decide."""

    scope: Scope  # the graph, normalised and analysed. Its view is what a fold edits
    method: Method
    inputs: ModelInputs | None  # what the graph is run on; None where it is not run
    duplicates: tuple[Labels, ...]  # classes of exact duplicates, one array per group
    seed: int  # seed of everything random
    diagnoses: bool = True  # whether a fold measures its effect on the activations
    sources: tuple[Sources, ...] = ()  # one per group where networks are merged; empty elsewhere
    candidates: list[Candidates] | None = None  # what every group could become, where that decides the widths

    @property
    def groups(self) -> list[FoldGroup]:
        """The groups of the graph."""
        return self.scope.analysis.groups

    def method_with(self, *, moments: bool, rotates: bool = False) -> Method:
        """Return the method, or what stands in for it, where the consumers of a group were seen or not."""
        return self.method.possible(moments=moments, inputs=self.inputs is not None, rotates=rotates)

    @property
    def repair(self) -> Repair:
        """The repair that is possible in this graph."""
        return self.method_with(moments=False).repair_row

    @property
    def lossless(self) -> list[int]:
        """The width of every group without its exact duplicates; the whole width where channels are not averaged."""
        if not self.method_with(moments=False).partitioner.averages:
            return [group.size for group in self.groups]
        return [lossless_width(g, c) for c, g in zip(self.duplicates, self.groups, strict=True)]


@dataclass(frozen=True, eq=False)
class Folded:
    """The fold of a graph; the view of its scope is the folded graph."""

    plan: FoldPlan  # the groups that shrank, and their partitions
    groups: tuple[GroupRecord, ...]  # one per group of the graph
    passes: tuple[PassRecord, ...]  # the passes that ran, those of the normal form first
    diagnostics: Diagnostics  # what the fold did to the activations


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model, and all that its fold does not decide."""

    opened: OpenedModel
    graphs: list[Prepared]  # its graphs, outer ones first

    @property
    def losses(self) -> list[Matrix]:
        """The losses of every group of every graph at its widths, as a request takes them; none without candidates."""
        return [choice.losses for graph in self.graphs for choice in graph.candidates or ()]

    @property
    def lossless(self) -> list[int]:
        """The width of every group of every graph without its exact duplicates."""
        return [width for graph in self.graphs for width in graph.lossless]

    def trial(self) -> "PreparedModel":
        """Return a copy for a fold that is judged and thrown away: its weights are the same, its report is empty."""
        opened = self.opened.copy()
        pairs = zip(self.graphs, opened.scopes, strict=True)
        return replace(self, opened=opened, graphs=[replace(g, scope=scope, diagnoses=False) for g, scope in pairs])


def prepare(opened: OpenedModel, method: Method, inputs: ModelInputs | None, seed: int) -> PreparedModel:
    """Prepare every graph of a model. Bodies are never run alone."""
    graphs = []
    for i, scope in enumerate(opened.scopes):
        groups = scope.analysis.groups
        averages = method.partitioner.averages and not opened.sources
        classes = exact_duplicates(scope.analysed, groups, averages=averages, seed=seed)
        # What is equal in a stream is no axis of its own; no channel of it is merged with another.
        duplicates = tuple(np.arange(g.size) if g.norms else c for g, c in zip(groups, classes, strict=True))
        shown = inputs if scope.body is None else None
        networks = opened.sources[i] if opened.sources else ()
        pairs = method.partitioner.pairs if networks else None
        partners = [None] * len(networks) if pairs is None else pairs(scope.analysed, groups, networks)
        sources = tuple(map(Sources, networks, partners))
        graphs.append(Prepared(scope, method, shown, duplicates, seed, sources=sources))
    return PreparedModel(opened, graphs)


def may_shrink(group: FoldGroup, keep: Sequence[str] = ()) -> bool:
    """Whether channels of a group may go where that loses nothing: those of ties and streams, and kept ones, stay."""
    return group.rules.tie is None and not group.norms and not any(group.matches(glob) for glob in keep)


def exact_duplicates(view: GraphView, groups: list[FoldGroup], *, averages: bool = True, seed: int = 0) -> list[Labels]:
    """Return the classes of exact duplicates; where channels are averaged, dead ones become some of them, in place."""
    with ONE_BLAS_THREAD:
        if averages:
            DeadToDuplicates(tuple(groups))(view)
        return find_duplicates(view, groups, seed=seed)


def spare_weights(scopes: Sequence[Scope]) -> int:
    """Return how many weights belong to channels that are dead, or exact duplicates of others."""
    copies = copy_scopes(list(scopes))
    graphs = [(scope.analysed, scope.analysis.groups) for scope in copies]
    pairs = [pair for view, groups in graphs for pair in zip(groups, exact_duplicates(view, groups), strict=True)]
    widths = [
        lossless_width(group, classes) if may_shrink(group) and not group.seam.spare else group.size
        for group, classes in pairs
    ]
    cost = WeightCost(graphs)
    return int(cost([group.size for group, _ in pairs]) - cost(widths))
