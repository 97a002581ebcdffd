"""Folding one graph: from what its groups could become to the folded graph."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from onnxfold.channels import FoldGroup
from onnxfold.cluster.candidates import Candidates
from onnxfold.cluster.duplicates import find_duplicates, lossless_width
from onnxfold.cluster.partition import ChannelPartition, Labels
from onnxfold.cluster.partitioners import Task
from onnxfold.cluster.plan import FoldPlan, plan_folds
from onnxfold.errors import VerificationError
from onnxfold.folding.diagnose import diagnose
from onnxfold.folding.methods import Method
from onnxfold.folding.scopes import Scope
from onnxfold.graph.finite import edited_flaws
from onnxfold.graph.view import GraphView
from onnxfold.inputs.model_inputs import ModelInputs
from onnxfold.machine.threads import one_blas_thread
from onnxfold.passes.base import Pass, Pipeline
from onnxfold.passes.merge.fold_channels import FoldChannels
from onnxfold.passes.merge.lump_duplicates import LumpDuplicates
from onnxfold.passes.merge.normalize_batch_norm import NormalizeBatchNorm
from onnxfold.passes.merge.scale_to_output import ScaleToOutput
from onnxfold.passes.normalize.pipelines import clean_up
from onnxfold.passes.repair.recalibrate import Recalibrate
from onnxfold.passes.repair.repair_approximate import RepairApproximate
from onnxfold.passes.repair.repair_least_squares import RepairLeastSquares
from onnxfold.progress import Progress, silent
from onnxfold.report import ONLY_DUPLICATES, Diagnostics, GroupRecord, PassRecord
from onnxfold.statistics.observe import ConsumerMoments, Observation, observe


@dataclass(eq=False)
class ScopeFold:
    """One graph on its way.

    Parameters
    ----------
    scope : Scope
        The graph; normalised; :meth:`fold` changes it.
    method : Method
        Partition and repair.
    inputs : ModelInputs, optional
        What the graph is run on; None where it cannot be run by itself.
    seed : int
        Seed.
    """

    scope: Scope
    method: Method
    inputs: ModelInputs | None
    seed: int
    progress: Progress = field(default=silent)
    plan: FoldPlan = field(default_factory=lambda: FoldPlan((), ()))
    diagnostics: Diagnostics = field(default_factory=Diagnostics)

    def __post_init__(self) -> None:
        self._requested = self.method
        self._clusters: dict[int, str] = {}
        if self.inputs is None:
            self.method = self.method.without_inputs()

    @property
    def groups(self) -> list[FoldGroup]:
        """The graph's groups."""
        return self.scope.analysis.groups

    @cached_property
    def duplicates(self) -> list[Labels]:
        """Classes of exact duplicates per group."""
        with one_blas_thread():
            return find_duplicates(self.scope.view, self.groups, seed=self.seed)

    @cached_property
    def curves(self) -> list[Candidates]:
        """What every group could become, at any width."""
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            return self._curves()

    def _curves(self) -> list[Candidates]:
        compared = self._with_rows(self.scope.view.copy(), self.groups)
        stored = self.scope.view
        self._lump(compared)
        moments: Sequence[Sequence[ConsumerMoments]] = [()] * len(self.groups)
        if self.inputs is not None:
            moments = self._observe(compared).moments
        found = []
        for i in range(len(self.groups)):
            self.progress("error curves", i, len(self.groups))
            found.append(self._candidates(i, compared, stored, moments[i], 1))
        return found

    def fold(self, widths: Sequence[int], *, from_curves: bool) -> list[PassRecord]:
        """Fold the graph.

        Parameters
        ----------
        widths : sequence of int
            Width of every group.
        from_curves : bool
            Take the partitions that the error curves were computed from; otherwise no other width is looked at.

        Raises
        ------
        VerificationError
            If a weight is no longer finite.
        """
        if all(w == g.size for g, w in zip(self.groups, widths, strict=True)):
            return []
        infinite = edited_flaws(self.scope.view)  # masks that were computed from constants
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            records = self._fold(widths, from_curves=from_curves)
        for name, found in edited_flaws(self.scope.view).items():
            if name not in infinite:
                raise VerificationError(
                    f"weight '{name}' became {found} in the fold: its type cannot hold what was computed; take another "
                    "--repair, or fold the model in float32"
                )
        return records

    def _fold(self, widths: Sequence[int], *, from_curves: bool) -> list[PassRecord]:
        if from_curves:
            _ = self.curves  # of the graph as it is now
        stored, view = self.scope.view.copy(), self._with_rows(self.scope.view, self._losing(widths))
        original = view.copy()
        self._lump(original)
        observation = None
        if self.inputs is not None:
            if self.method.partitioner.needs_moments and not from_curves:
                observation = self._observe(original)
            elif self.method.repairs.needs_inputs:
                observation = Observation(original.copy(), self.inputs.batches, matches=self._matches, was_run=False)

        def partition(i: int, width: int) -> ChannelPartition:
            if from_curves:
                candidates = self.curves[i]
            else:
                moments = observation.moments[i] if observation is not None and observation.moments else ()
                candidates = self._candidates(i, original, stored, moments, width)
            self._clusters[i] = candidates.cluster
            return candidates.partition(width)

        self.plan = plan_folds(self.groups, widths, partition, self.progress, self.duplicates)
        analysis = self.scope.analysis
        streams = self.method.repair == "none" and self.inputs is None
        merge = FoldChannels(self.plan, tuple(analysis.counts), tuple(analysis.selects), streams)
        passes = (merge, *self._repair(original, observation))
        records = Pipeline(passes, self.progress)(view).records
        errors = [c.errors for c in self.curves] if from_curves else None
        batches = None if self.inputs is None else self.inputs.batches
        self.diagnostics = diagnose(
            original, view, self.plan, self.groups, widths, errors, batches, progress=self.progress
        )
        return [*records, *clean_up(self.scope.copies)(view).records]

    def records(self, widths: Sequence[int]) -> list[GroupRecord]:
        """Return what the report says of every group, after the fold."""
        lossy = {id(group) for group in self.plan.lossy.groups}
        found = []
        for i, (group, width, classes) in enumerate(zip(self.groups, widths, self.duplicates, strict=True)):
            used = ("", "")
            if width < group.size:
                used = (self._clusters[i], self.method.repair) if id(group) in lossy else (ONLY_DUPLICATES, "none")
            duplicates = group.size - int(classes.max()) - 1
            found.append(
                GroupRecord(
                    group.name, group.size, width, group.nodes, duplicates,
                    self._requested.cluster, self._requested.repair, *used,
                )
            )  # fmt: skip
        return found

    def _losing(self, widths: Sequence[int]) -> list[FoldGroup]:
        """Return the groups that lose more than exact duplicates; the rows of others are merged as they are."""
        merges = self.method.partitioner.merges
        return [
            group
            for group, width, classes in zip(self.groups, widths, self.duplicates, strict=True)
            if width < (lossless_width(classes, group.blocks) if merges else group.size)
        ]

    def _with_rows(self, view: GraphView, groups: Sequence[FoldGroup]) -> GraphView:
        """Bring rows into the units that they are merged in."""
        rows = self.method.repairs.rows
        if rows == "normalised":
            NormalizeBatchNorm(tuple(groups))(view)
        elif rows == "output":
            ScaleToOutput(tuple(groups))(view)
        return view

    def _lump(self, view: GraphView) -> None:
        if self.method.partitioner.merges:
            LumpDuplicates(tuple(self.groups), tuple(self.duplicates))(view)

    @property
    def _matches(self) -> bool:
        return self.inputs is not None and not self.inputs.has_data_statistics

    def _observe(self, view: GraphView) -> Observation:
        assert self.inputs is not None
        return observe(view, self.groups, self.inputs.batches, match=self._matches, progress=self.progress)

    def _candidates(
        self, i: int, view: GraphView, stored: GraphView, moments: Sequence[ConsumerMoments], narrowest: int
    ) -> Candidates:
        group = self.groups[i]
        task = Task(
            view, stored, group, self.duplicates[i], self.seed,
            with_deviation=self.method.repairs.rows == "stored",
            moments=moments,
            narrowest=max(narrowest, group.block_count),
        )  # fmt: skip
        return self.method.partitioner.candidates(task)

    def _repair(self, original: GraphView, observation: Observation | None) -> tuple[Pass, ...]:
        name = self.method.repair
        if name in ("approximate", "independent"):
            return (RepairApproximate(original, self.plan, independent=name == "independent"),)
        if name == "none":
            return ()
        assert observation is not None
        if name == "recalibrate":
            return (Recalibrate(original, self.plan, observation, self.progress),)
        return (RepairLeastSquares(original, self.plan, observation, self.seed, self.progress),)
