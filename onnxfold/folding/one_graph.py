"""The fold of one graph: candidates, a plan, the merge, the repair, the clean-up."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Axis
from onnxfold.cluster.duplicates import is_lossless
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.cluster.partitioners import ROTATION
from onnxfold.cluster.plan import FoldPlan, plan_folds
from onnxfold.cluster.task import Candidates, Weighted
from onnxfold.errors import VerificationError
from onnxfold.folding.group_candidates import ChosenCandidates, GroupCandidates, GroupTasks
from onnxfold.folding.methods import RepairTask
from onnxfold.folding.prepare import Folded, Prepared
from onnxfold.folding.probes.diagnose import diagnose, error_curves
from onnxfold.folding.probes.output_metric import output_metrics
from onnxfold.folding.probes.sensitivity import measured_sensitivities
from onnxfold.graph.finite import edited_flaws
from onnxfold.graph.view import GraphView
from onnxfold.machine.threads import one_blas_thread
from onnxfold.passes.base import Pipeline
from onnxfold.passes.merge.dead_to_duplicates import DeadToDuplicates
from onnxfold.passes.merge.fold_channels import FoldChannels, LumpDuplicates
from onnxfold.passes.merge.normalize_batch_norm import AbsorbNorms
from onnxfold.passes.normalize.pipelines import clean_up
from onnxfold.progress import Progress, silent
from onnxfold.report import ONLY_DUPLICATES, Diagnostics, GroupRecord
from onnxfold.statistics.observe import Observation, Observing, Receiver, observe


def find_candidates(prepared: Prepared, progress: Progress = silent) -> list[Candidates]:
    """Return the candidates of every group of a graph, at any width; the graph stays as it is."""
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        stored = prepared.scope.analysed.copy()  # partitions are computed when asked for, after rows were scaled
        matched = _lump_duplicates(_scale_rows(stored.copy(), prepared, prepared.groups), prepared)
        metrics = output_metrics(prepared, progress)
        with GroupCandidates(GroupTasks(prepared, matched, stored, metrics), progress) as work:
            observation = _observe_consumers(prepared, matched, progress, work)
            candidates = work.finish()
        if observation is None or prepared.inputs is None or not work.are_unsure:
            return candidates
        factors = measured_sensitivities(
            observation.reference, prepared.groups, prepared.inputs, work.probes(), progress
        )
        return [Weighted(choice, float(factor)) for choice, factor in zip(candidates, factors, strict=True)]


def fold_graph(prepared: Prepared, widths: Sequence[int], progress: Progress = silent) -> Folded:
    """Fold a graph, in place."""
    if all(w == g.size for g, w in zip(prepared.groups, widths, strict=True)):
        plan = FoldPlan((), ())
        return Folded(plan, _records(prepared, widths, {}), tuple(prepared.scope.records), Diagnostics())
    infinite = edited_flaws(prepared.scope.view)  # masks that were computed from constants
    with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
        seamed, numbers = insert_used_seams(prepared, widths)
        folded, clusters = _fold(seamed, [widths[i] for i in numbers], progress)
    folded = replace(folded, groups=_records(prepared, widths, {numbers[i]: how for i, how in clusters.items()}))
    for name, defect in edited_flaws(prepared.scope.view).items():
        if name not in infinite:
            raise VerificationError(
                f"weight '{name}' became {defect} in the fold: its type cannot hold what was computed; take another "
                "--repair, or fold the model in float32"
            )
    return folded


def _fold(prepared: Prepared, widths: Sequence[int], progress: Progress) -> tuple[Folded, dict[int, tuple[str, str]]]:
    """Fold a graph; return by which clustering and repair, too, by number of the group."""
    view = prepared.scope.view
    stored = view.copy()
    averages = prepared.method.partitioner.averages
    lossy = [  # the rows of others are merged as they are
        group
        for group, width, classes in zip(prepared.groups, widths, prepared.duplicates, strict=True)
        if not (is_lossless(group, width, classes) if averages else width == group.size)
    ]
    _scale_rows(view, prepared, lossy)
    compared = _lump_duplicates(view.copy(), prepared)  # what repairs and diagnoses compare the result with
    matched = compared.copy() if prepared.sources else compared  # whose channels are matched with each other
    work = ChosenCandidates(GroupTasks(prepared, matched, stored), widths)
    observation: Observation | None = None
    if prepared.method.partitioner.needs_moments and prepared.candidates is None:
        observation = _observe_consumers(prepared, compared, progress, work)
    elif prepared.repair.needs_inputs and prepared.inputs is not None:
        inputs = prepared.inputs
        observation = Observation(compared.copy(), inputs.batches, rules=inputs.fit_rules, was_run=False)
    chosen = work.finish() if prepared.candidates is None else dict(enumerate(prepared.candidates))
    partition = partial(_partition, prepared, chosen, matched)
    plan = plan_folds(prepared.groups, widths, partition, progress, prepared.duplicates)
    analysis = prepared.scope.analysis
    repair = prepared.repair.passes(RepairTask(compared, matched, plan, observation, prepared.seed, progress))
    streams = view.scratch is not None or (not repair and prepared.inputs is None)
    merge = FoldChannels(plan, tuple(analysis.counts), tuple(analysis.selects), streams)
    first, last = ((), repair) if prepared.repair.adds_nodes else (repair, ())
    records = Pipeline((merge, *first), progress)(view).records
    diagnostics = Diagnostics()
    if prepared.diagnoses:
        batches = None if prepared.inputs is None else prepared.inputs.front
        errors = [choice.errors for choice in prepared.candidates or ()]
        curves = error_curves(prepared.groups, errors, widths) if errors else ()
        measured = diagnose(compared, view, plan, prepared.groups, batches, progress)
        diagnostics = replace(measured, error_curves=curves)
    if last:
        records = (*records, *Pipeline(last, progress)(view).records)
    changed, repaired = {id(group) for group in plan.lossy.groups}, prepared.repair.name
    used = {
        i: (chosen[i].cluster, repaired) if id(group) in changed else (ONLY_DUPLICATES, "none")
        for i, group in enumerate(prepared.groups)
        if widths[i] < group.size
    }
    passes = (*prepared.scope.records, *records, *clean_up(prepared.scope.copies)(view).records)
    return Folded(plan, (), passes, diagnostics), used


def _partition(
    prepared: Prepared, chosen: Mapping[int, Candidates], matched: GraphView, i: int, width: int
) -> ChannelPartition:
    """Return the partition of a group; of networks, what reads it is matched as it will be."""
    partition = chosen[i].partition(width)
    if prepared.sources:
        # Channels of different networks read different columns: their rows have nothing in common before these are
        # added up.
        apart = np.arange(len(partition.labels)) + partition.clusters
        labels = np.where(partition.labels < 0, apart, partition.labels)
        LumpDuplicates((prepared.groups[i],), (labels,))(matched)
    return partition


def _scale_rows(view: GraphView, prepared: Prepared, groups: Sequence[FoldGroup]) -> GraphView:
    """Bring the rows of groups into the units that they are merged in, and scales of norms into what reads them."""
    for step in (AbsorbNorms(tuple(groups)), *prepared.repair.units.passes(tuple(groups))):
        step(view)
    return view


def _lump_duplicates(view: GraphView, prepared: Prepared) -> GraphView:
    """Add up the columns of exact duplicates, where channels are averaged."""
    if prepared.method.partitioner.averages:
        LumpDuplicates(tuple(prepared.groups), prepared.duplicates)(view)
    return view


def _observe_consumers(
    prepared: Prepared, view: GraphView, progress: Progress, receiver: Receiver
) -> Observation | None:
    """Run a graph, and observe the activations that its groups' consumers read; None where it cannot be run."""
    if prepared.inputs is None:
        return None
    inputs = prepared.inputs
    how = Observing(inputs.fit_rules, prepared.duplicates, prepared.method.partitioner.needs_places)
    return observe(view, prepared.groups, inputs.batches, how, receiver, progress)


def _records(prepared: Prepared, widths: Sequence[int], used: Mapping[int, tuple[str, str]]) -> tuple[GroupRecord, ...]:
    """Return the report's record of every group, with the clustering and the repair of those that shrank."""
    records = []
    for i, (group, width, classes) in enumerate(zip(prepared.groups, widths, prepared.duplicates, strict=True)):
        duplicates = group.size - int(classes.max()) - 1
        requested = (
            ROTATION if group.is_there_to_rotate and prepared.method.partitioner.rotates else prepared.method.cluster,
            prepared.method.repair,
        )
        how = used.get(i, ("", ""))
        records.append(GroupRecord(group.name, group.size, width, group.nodes, duplicates, *requested, *how))
    return tuple(records)


def insert_used_seams(prepared: Prepared, widths: Sequence[int]) -> tuple[Prepared, list[int]]:
    """Write the seams whose groups are narrower into a graph, in place; return its groups' numbers among all seams."""
    scope, groups = prepared.scope, prepared.groups
    if scope.trial is None:
        return prepared, list(range(len(groups)))
    narrower = {i for i, (group, width) in enumerate(zip(groups, widths, strict=True)) if width < group.size}
    # Names that a seam gives to activations depend on the other seams.
    stable = {*scope.trial.weights, *(name for node in scope.view.nodes for name in node.output)}
    places = {key: i for i, group in enumerate(groups) for key in _places(group, stable)}
    scope = scope.with_seams(frozenset(name for i in narrower for name in groups[i].seam.spare))
    kept = [
        (replace(group, name=groups[number].name), number)
        for group in scope.analysis.groups
        for number in [next((places[key] for key in _places(group, stable) if key in places), None)]
        if number is not None
    ]
    numbers = [number for _, number in kept]
    assert narrower <= set(numbers), "channels that become fewer are a group without the other seams, too"
    scope = replace(scope, analysis=replace(scope.analysis, groups=[group for group, _ in kept]))
    if prepared.method.partitioner.averages and not prepared.sources:
        DeadToDuplicates(tuple(scope.analysis.groups))(scope.view)
    chosen = replace(
        prepared,
        scope=scope,
        duplicates=tuple(prepared.duplicates[i] for i in numbers),
        sources=tuple(prepared.sources[i] for i in numbers) if prepared.sources else (),
        candidates=None if prepared.candidates is None else [prepared.candidates[i] for i in numbers],
    )
    return chosen, numbers


def _places(group: FoldGroup, names: Container[str]) -> Iterator[tuple[Axis, bytes]]:
    """Yield where the channels of a group are, on weights first, and on those with some names only."""
    everywhere = (*((member.axis, member.positions) for member in group.members), *group.tensors.items())
    return ((axis, positions.tobytes()) for axis, positions in everywhere if axis.tensor in names)
