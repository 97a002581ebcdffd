"""The interface of a pass: a value that changes a :class:`~onnxfold.graph.view.GraphView` and records it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """One transformation; subclasses are frozen dataclasses whose fields are its inputs."""

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
