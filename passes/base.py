"""Passes: values that change a :class:`~onnxfold.graph.view.GraphView` and record it; rewrites of patterns of nodes."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from onnx import NodeProto

from onnxfold.graph.nodes import node_key
from onnxfold.graph.patterns import Match, Mismatch, Op, find_match
from onnxfold.graph.view import GraphView
from onnxfold.progress import Progress, silent
from onnxfold.report import PassRecord


@dataclass(frozen=True)
class PassResult:
    """Outcome of a pass."""

    modified: bool  # Whether the graph or a weight changed. Running the pass again must then give False.
    #: Initializers that the pass made as copies of others, with the names of these.
    copies: Mapping[str, str] = field(default_factory=dict)
    records: tuple[PassRecord, ...] = field(default=())  # outcomes of inner passes
    reasons: Mapping[str, str] = field(default_factory=dict)  # why nodes stay that a rewrite is for, by their keys


@dataclass(frozen=True)
class Pass(ABC):
    """One transformation; a subclass that has inputs is a frozen dataclass, whose fields they are."""

    @property
    def name(self) -> str:
        """The pass's name in reports."""
        return type(self).__name__

    @abstractmethod
    def run(self, view: GraphView) -> PassResult:
        """Change the graph."""

    def ensures(self, view: GraphView) -> None:  # noqa: B027  (a pass may promise nothing)
        """Raise :class:`~onnxfold.errors.PassError` if the pass did not do what it promises."""

    def __call__(self, view: GraphView) -> PassResult:
        """Run, check."""
        result = self.run(view)
        self.ensures(view)
        return result


@dataclass(frozen=True)
class Pipeline(Pass):
    """A sequence of passes, which is a pass itself."""

    passes: tuple[Pass, ...]
    progress: Progress = field(default=silent, compare=False)

    def run(self, view: GraphView) -> PassResult:
        """Run every pass and keep a record of each."""
        records: list[PassRecord] = []
        copies: dict[str, str] = {}
        for step in self.passes:
            self.progress(step.name, 0, 0)
            start = time.perf_counter()
            result = step(view)
            records += result.records
            records.append(PassRecord(step.name, result.modified, time.perf_counter() - start))
            copies |= result.copies
        return PassResult(any(r.modified for r in records), copies, tuple(records))


class Rewrite(Pass):
    """A pass that is patterns, a check of what they match, and the nodes that stand in the place of a match."""

    #: What is rewritten; the first that matches counts.
    patterns: ClassVar[tuple[Op, ...]]
    #: Whether others may read what lies between the nodes of a match; it goes when all of them are rewritten.
    shared: ClassVar[bool] = False

    @abstractmethod
    def replace(self, view: GraphView, match: Match) -> list[NodeProto]:
        """Return the nodes that compute what a match computes; raise :class:`Mismatch` where it must stay."""

    def run(self, view: GraphView) -> PassResult:
        """Rewrite every match; none shares a node that is replaced with another."""
        made: dict[str, list[NodeProto]] = {}
        inner: dict[str, NodeProto] = {}
        reasons: dict[str, str] = {}
        for node in view.nodes:
            for pattern in [p for p in self.patterns if p.fits(node)]:
                try:
                    match = find_match(view, node, pattern, shared=self.shared)
                    if any(node_key(n) in made for n in match.nodes):
                        raise Mismatch("a part of it is rewritten already")  # noqa: TRY301
                    nodes = self.replace(view, match)
                except Mismatch as reason:
                    reasons[node_key(node)] = str(reason)
                    continue
                reasons.pop(node_key(node), None)
                places = match.nodes[-1:] if self.shared else match.nodes
                made |= dict(zip(map(node_key, places), _spread(nodes, len(places)), strict=True))
                inner |= {node_key(n): n for n in match.nodes[:-1]}
                break
        for key, node in reversed(inner.items()) if self.shared else ():
            readers = map(node_key, view.consumers(key))
            if node.output[0] not in view.output_names and all(reader in made for reader in readers):
                made[key] = []
        return PassResult(view.expand(made), reasons=reasons)


def _spread(nodes: list[NodeProto], places: int) -> list[list[NodeProto]]:
    """Return nodes for every place: one each for the last places; what is too much stands in the first."""
    more = max(len(nodes) - places, 0)
    return [*[[]] * (places - len(nodes)), *([nodes[: more + 1]] if nodes else []), *([n] for n in nodes[more + 1 :])]
