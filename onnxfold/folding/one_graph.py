"""The fold of one graph: candidates, a plan, the merge, the repair, the clean-up.

Moments of wide layers take most of the memory of a fold: two matrices of the layer's width per consumer. Of a language
model, whose layers are many, a group's candidates are therefore computed while the walk goes on, and its moments are
forgotten. Probes, which need them, too, are prepared at the same time. Of other networks the moments are kept until it
is known whether any of them are so unsure that there are probes at all.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from onnxfold.channels import FoldGroup
from onnxfold.channels.declarations import Axis
from onnxfold.cluster.duplicates import is_lossless
from onnxfold.cluster.partition import ChannelPartition
from onnxfold.cluster.partitioners import ROTATION
from onnxfold.cluster.plan import FoldPlan, plan_folds
from onnxfold.cluster.task import Candidates, ComparedGraph, Sources, Task, Weighted
from onnxfold.errors import VerificationError
from onnxfold.folding.methods import RepairTask
from onnxfold.folding.prepare import Folded, Prepared, PreparedModel
from onnxfold.folding.probes.diagnose import diagnose, error_curves
from onnxfold.folding.probes.output_metric import output_metrics
from onnxfold.folding.probes.sensitivity import Probe, measured_sensitivities
from onnxfold.graph.finite import edited_flaws
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.machine.threads import ONE_BLAS_THREAD, usable_cores
from onnxfold.passes.base import Pipeline
from onnxfold.passes.merge.dead_to_duplicates import DeadToDuplicates
from onnxfold.passes.merge.fold_channels import FoldChannels, LumpDuplicates
from onnxfold.passes.merge.normalize_batch_norm import AbsorbNorms
from onnxfold.passes.normalize.pipelines import clean_up
from onnxfold.progress import Progress, silent
from onnxfold.report.fold_report import ONLY_DUPLICATES, GroupRecord
from onnxfold.report.records import Diagnostics
from onnxfold.statistics.observe import ConsumerMoments, Observation, Observing, Take, observe

#: Groups up to this size are computed beside each other: a dozen matrices of each are in memory.
_BESIDE = 4096


@dataclass(frozen=True, eq=False)
class GroupTasks:
    """The groups of a graph, and all that their candidates are made of but moments."""

    prepared: Prepared
    matched: GraphView  # the graph whose channels are matched with each other
    stored: GraphView  # the graph as it is stored
    metrics: Mapping[int, Matrix] = field(default_factory=dict)  # what the outputs say of the errors of some groups

    def candidates(self, i: int, moments: Sequence[ConsumerMoments], narrowest: int = 1) -> Candidates:
        """Return the candidates of a group, by the stand-in of the method where its consumers were not seen."""
        prepared, group = self.prepared, self.prepared.groups[i]
        inputs, units = prepared.inputs, prepared.repair.units
        # Inner channels of language models are products of gates, which means of factors say little of.
        merges, words = inputs is None or not inputs.are_tokens, None if inputs is None else inputs.tokens.words
        graph = ComparedGraph(self.matched, self.stored, units.keeps_deviation, merges, words)
        narrowest = max(narrowest, group.block_count)
        sources = prepared.sources[i] if prepared.sources else Sources()
        task = Task(graph, group, prepared.duplicates[i], moments, narrowest, sources, self.metrics.get(i))
        row = prepared.method_with(moments=bool(moments), rotates=group.is_there_to_rotate).partitioner
        return row.candidates(task)


class GroupCandidates:
    """Computes the candidates of every group, several beside each other, and each by one thread."""

    def __init__(self, tasks: GroupTasks, progress: Progress) -> None:
        self._tasks, self._progress = tasks, progress
        prepared = tasks.prepared
        self._at_once = prepared.inputs is not None and prepared.inputs.are_tokens
        self._compare = prepared.method.partitioner.compares
        self._groups = prepared.groups
        #: Moments of the groups that wait; none of those that were not seen.
        self._waiting: dict[int, Sequence[ConsumerMoments]] = dict.fromkeys(range(len(self._groups)), ())
        self._candidates: dict[int, Candidates] = {}
        self._probes: dict[int, Probe] = {}
        widest = max((group.size for group in self._groups), default=0)
        self._threads = usable_cores() if widest <= _BESIDE else 1
        self._pool = ThreadPoolExecutor(self._threads)
        self._running: deque[Future[None]] = deque()

    def close(self) -> None:
        """Compute nothing that has not begun."""
        self._pool.shutdown(cancel_futures=True)

    def take(self, group: int, moments: Sequence[ConsumerMoments]) -> None:
        """Begin with a group, by the moments of its consumers' inputs."""
        if not self._at_once:
            self._waiting[group] = moments
            return
        del self._waiting[group]
        while len(self._running) >= self._threads:
            self._running.popleft().result()
        self._running.append(self._pool.submit(self._compute, group, moments))

    def make_room(self, channels: int) -> None:
        """Wait until moments of so many channels have room: there is none for two wide groups."""
        if channels > _BESIDE:
            while self._running:
                self._running.popleft().result()

    def finish(self) -> list[Candidates]:
        """Return the candidates of all groups, those that were not seen among them."""
        self._running.extend(self._pool.submit(self._compute, i, seen) for i, seen in self._waiting.items())
        total = len(self._groups)
        while self._running:
            self._running.popleft().result()
            self._progress("error curves", total - len(self._running) - 1, total)
        return [self._candidates[i] for i in range(total)]

    @property
    def are_unsure(self) -> bool:
        """Whether errors are to be weighed by what they do to the outputs."""
        return not self._compare and (
            self._at_once or any(moment.shrinkage for moments in self._waiting.values() for moment in moments)
        )

    def probes(self) -> dict[int, Probe]:
        """Return a probe of every group that was seen, and give up the moments."""
        while self._waiting:
            self._settle(*self._waiting.popitem())
        return dict(sorted(self._probes.items()))

    def _compute(self, i: int, moments: Sequence[ConsumerMoments]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # a thread has its own
            self._candidates[i] = self._tasks.candidates(i, moments)
            if self._at_once:
                self._settle(i, moments)
        if self._tasks.stored.scratch is not None:
            memory.give_back()

    def _settle(self, i: int, moments: Sequence[ConsumerMoments]) -> None:
        """Make the probe of a group that was seen, after which its moments are needed no longer."""
        candidates, held = self._candidates[i], self._tasks.stored.held
        if moments and not self._compare:
            self._probes[i] = Probe(self._groups[i], candidates, moments, of_tokens=self._at_once, held=held)
        candidates.settle()


def with_candidates(prepared: PreparedModel, progress: Progress = silent) -> PreparedModel:
    """Return a prepared model with what every group of its graphs could become."""
    graphs = [replace(graph, candidates=find_candidates(graph, progress)) for graph in prepared.graphs]
    return replace(prepared, graphs=graphs)


def find_candidates(prepared: Prepared, progress: Progress = silent) -> list[Candidates]:
    """Return the candidates of every group of a graph, at any width; the graph stays as it is."""
    with ONE_BLAS_THREAD, np.errstate(over="ignore", invalid="ignore"):
        stored = prepared.scope.analysed.copy()  # partitions are computed when asked for, after rows were scaled
        matched = _lump_duplicates(_scale_rows(stored.copy(), prepared, prepared.groups), prepared)
        metrics = output_metrics(prepared, progress)
        with closing(GroupCandidates(GroupTasks(prepared, matched, stored, metrics), progress)) as work:
            observation = _observe_consumers(prepared, matched, progress, work.take, work.make_room)
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
    with ONE_BLAS_THREAD, np.errstate(over="ignore", invalid="ignore"):
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
    tasks = GroupTasks(prepared, matched, stored)
    chosen = dict(enumerate(prepared.candidates or ()))
    shrinking = [i for i, group in enumerate(prepared.groups) if widths[i] < group.size]

    def choose(i: int, moments: Sequence[ConsumerMoments]) -> None:
        if i in shrinking:
            chosen[i] = tasks.candidates(i, moments, widths[i])

    observation: Observation | None = None
    if prepared.method.partitioner.needs_moments and prepared.candidates is None:
        observation = _observe_consumers(prepared, compared, progress, choose)
    elif prepared.repair.needs_inputs and prepared.inputs is not None:
        inputs, rules = prepared.inputs, prepared.inputs.fit_rules
        observation = Observation(compared.copy(), inputs.staged(view), rules, is_to_match=rules.matches)
    for i in shrinking:
        if i not in chosen:
            choose(i, ())
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
        batches = None if prepared.inputs is None else prepared.inputs.walked(view)
        errors = [choice.errors for choice in prepared.candidates or ()]
        curves = error_curves(prepared.groups, errors, widths) if errors else ()
        measured = diagnose(compared, view, plan, prepared.groups, batches, progress)
        diagnostics = replace(measured, error_curves=curves)
    if last:
        records = (*records, *Pipeline(last, progress)(view).records)
    changed, repaired = {id(group) for group in plan.lossy.groups}, prepared.repair.name
    used = {
        i: (chosen[i].cluster, repaired) if id(prepared.groups[i]) in changed else (ONLY_DUPLICATES, "none")
        for i in shrinking
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
    prepared: Prepared, view: GraphView, progress: Progress, take: Take, make_room: Callable[[int], None] | None = None
) -> Observation | None:
    """Run a graph, and observe the activations that its groups' consumers read; None where it cannot be run."""
    if prepared.inputs is None:
        return None
    inputs = prepared.inputs
    how = Observing(inputs.fit_rules, prepared.duplicates, prepared.method.partitioner.needs_places, make_room)
    return observe(view, prepared.groups, inputs.staged(view), take, how, progress)


def _records(prepared: Prepared, widths: Sequence[int], used: Mapping[int, tuple[str, str]]) -> tuple[GroupRecord, ...]:
    """Return the report's record of every group, with the clustering and the repair of those that shrank."""
    records, method = [], prepared.method
    for i, (group, width, classes) in enumerate(zip(prepared.groups, widths, prepared.duplicates, strict=True)):
        duplicates = group.size - int(classes.max()) - 1
        cluster = ROTATION if group.is_there_to_rotate and method.partitioner.rotates else method.cluster
        requested, how = (cluster, method.repair), used.get(i, ("", ""))
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
    duplicates = tuple(prepared.duplicates[i] for i in numbers)
    sources = tuple(prepared.sources[i] for i in numbers) if prepared.sources else ()
    candidates = None if prepared.candidates is None else [prepared.candidates[i] for i in numbers]
    return replace(prepared, scope=scope, duplicates=duplicates, sources=sources, candidates=candidates), numbers


def _places(group: FoldGroup, names: Container[str]) -> Iterator[tuple[Axis, bytes]]:
    """Yield where the channels of a group are, on weights first, and on those with some names only."""
    everywhere = (*((member.axis, member.positions) for member in group.members), *group.tensors.items())
    return ((axis, positions.tobytes()) for axis, positions in everywhere if axis.tensor in names)
