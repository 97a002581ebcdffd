"""Candidates of the groups of a graph, computed as soon as their consumers were met.

Moments of wide layers take most of the memory of a fold: two matrices of the layer's width per consumer. Of a language
model, whose layers are many, a group's candidates are therefore computed while the walk goes on, and its moments are
forgotten. Probes, which need them, too, are prepared at the same time. Of other networks the moments are kept until it
is known whether any of them are so unsure that there are probes at all.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from onnxfold.cluster.task import Candidates, ComparedGraph, Sources, Task
from onnxfold.folding.prepare import Prepared
from onnxfold.folding.probes.sensitivity import Probe
from onnxfold.graph.tensors import Matrix
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.machine.threads import usable_cores
from onnxfold.progress import Progress
from onnxfold.statistics.observe import ConsumerMoments

#: Groups up to this size are computed beside each other: a dozen matrices of each are in memory.
_BESIDE = 4096
_NOT_SEEN: Sequence[ConsumerMoments] = ()


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
        inputs = prepared.inputs
        graph = ComparedGraph(
            self.matched,
            self.stored,
            with_deviation=prepared.repair.units.keeps_deviation,
            # Inner channels of language models are products of gates, which means of factors say little of.
            merges=inputs is None or not inputs.are_tokens,
            words=None if inputs is None else inputs.tokens.words,
        )
        task = Task(
            graph,
            group,
            prepared.duplicates[i],
            moments,
            narrowest=max(narrowest, group.block_count),
            sources=prepared.sources[i] if prepared.sources else Sources(),
            metric=self.metrics.get(i),
        )
        row = prepared.method_with(moments=bool(moments), rotates=group.is_there_to_rotate).partitioner
        return row.candidates(task)


class ChosenCandidates:
    """The candidates of groups whose widths are known: of those that lose channels."""

    def __init__(self, tasks: GroupTasks, widths: Sequence[int]) -> None:
        self._tasks, self._widths = tasks, widths
        self._shrinking = [i for i, (g, w) in enumerate(zip(tasks.prepared.groups, widths, strict=True)) if w < g.size]
        self._by_group: dict[int, Candidates] = {}

    def make_room(self, channels: int) -> None:
        """Keep nothing for which there would have to be room."""

    def take(self, group: int, moments: Sequence[ConsumerMoments]) -> None:
        """Make the candidates of a group by its moments."""
        if group in self._shrinking:
            self._by_group[group] = self._tasks.candidates(group, moments, self._widths[group])

    def finish(self) -> dict[int, Candidates]:
        """Return the candidates of all groups, those that were not seen among them."""
        for group in self._shrinking:
            if group not in self._by_group:
                self.take(group, ())
        return self._by_group


class GroupCandidates:
    """Computes the candidates of every group, several beside each other, and each by one thread."""

    def __init__(self, tasks: GroupTasks, progress: Progress) -> None:
        self._tasks, self._progress = tasks, progress
        prepared = tasks.prepared
        self._at_once = prepared.inputs is not None and prepared.inputs.are_tokens
        self._compare = prepared.method.partitioner.compares
        self._groups = prepared.groups
        self._seen: dict[int, Sequence[ConsumerMoments]] = {}
        self._begun: set[int] = set()
        self._candidates: dict[int, Candidates] = {}
        self._probes: dict[int, Probe] = {}
        widest = max((group.size for group in self._groups), default=0)
        self._threads = usable_cores() if widest <= _BESIDE else 1
        self._pool = ThreadPoolExecutor(self._threads)
        self._running: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def take(self, group: int, moments: Sequence[ConsumerMoments]) -> None:
        """Begin with a group, by the moments of its consumers' inputs."""
        if not self._at_once:
            self._seen[group] = moments
            return
        self._begun.add(group)
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
        for i in range(len(self._groups)):
            if i not in self._begun:
                self._running.append(self._pool.submit(self._compute, i, self._seen.get(i, _NOT_SEEN)))
        total = len(self._groups)
        while self._running:
            self._running.popleft().result()
            self._progress("error curves", total - len(self._running) - 1, total)
        return [self._candidates[i] for i in range(total)]

    @property
    def are_unsure(self) -> bool:
        """Whether errors are to be weighed by what they do to the outputs."""
        return not self._compare and (
            self._at_once or any(moment.shrinkage for moments in self._seen.values() for moment in moments)
        )

    def probes(self) -> dict[int, Probe]:
        """Return a probe of every group that was seen."""
        for i, moments in self._seen.items():
            if moments:
                self._probes[i] = self._probe(i, moments)
        return dict(sorted(self._probes.items()))

    def _compute(self, i: int, moments: Sequence[ConsumerMoments]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # a thread has its own
            self._candidates[i] = self._tasks.candidates(i, moments)
            if self._at_once and moments and not self._compare:
                self._probes[i] = self._probe(i, moments)
            if self._at_once:
                self._candidates[i].settle()
        if self._tasks.stored.scratch is not None:
            memory.give_back()

    def _probe(self, i: int, moments: Sequence[ConsumerMoments]) -> Probe:
        candidates, held = self._candidates[i], self._tasks.stored.held
        return Probe(self._groups[i], candidates, moments, of_tokens=self._at_once, held=held)
