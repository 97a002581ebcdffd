"""A network run node by node over batches of inputs, and the ranges of its activations."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxfold.errors import VerificationError
from onnxfold.graph.bodies import needed_nodes, part_of
from onnxfold.graph.nodes import node_key, read_names
from onnxfold.graph.run.node_runner import NodeRunner, NodeSessions
from onnxfold.graph.run.session import Session, count_samples, fit_feeds, joined_outputs, sample_count
from onnxfold.graph.spill import SpilledArray, SpillFile
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine import memory
from onnxfold.progress import Progress, silent

#: One dict of inputs per batch.
Batches = list[dict[str, Array]]


@dataclass(frozen=True, eq=False)
class Stage:
    """A place from which on a walk has larger batches, and perhaps more of them."""

    node: str  # the key of the node in front of which it begins
    size: int  # samples of a batch
    joining: Batches  # inputs that the walk begins with there, so many at once as the whole network can be run on


@dataclass(frozen=True, eq=False)
class StagedBatches:
    """Inputs of a walk that has more of them behind its first nodes, where activations are smaller."""

    first: Batches
    stages: tuple[Stage, ...] = ()


#: Bytes of activations that a walk holds in memory, beside those of its inputs and of the node that it runs.
_HELD_BYTES = 1 << 27
#: Smaller batches stay in memory.
_LEAST_BYTES = 1 << 16
#: Takes what runs a node, the number of a batch, and what the node reads there; returns its results by name.
RunOne = Callable[[NodeRunner, int, dict[str, Array]], dict[str, Array]]
#: Tensors that a walk is for, by the key of the node at which they are looked at.
LookedAt = Mapping[str, Collection[str]]
#: Takes how many nodes were run, and how many are to be.
Tell = Callable[[int, int], None]


class WaitingBatches(Sequence[Array]):
    """Batches of one tensor: in memory while there is room, the others in a file."""

    def __init__(self, file: SpillFile) -> None:
        self.held_bytes = 0  # of those in memory
        self._batches: list[Array | SpilledArray] = []
        self._file = file

    def add(self, values: Array, room: int) -> None:
        """Add a batch, which stays in memory if it takes no more bytes than the room, or there is no disk."""
        if isinstance(values, np.ndarray) and values.nbytes > max(room, _LEAST_BYTES) and values.dtype.kind in "biuf":
            with suppress(OSError):
                self._batches.append(self._file.keep(values))
                return
        self._batches.append(values)
        self.held_bytes += getattr(values, "nbytes", 0)

    def repeat_first(self, count: int) -> None:
        """Let the first batches be the last ones, too; they are there once."""
        self._batches += self._batches[:count]

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: Any) -> Any:
        """Return a batch; of one in the file, only what is read takes memory."""
        batch = self._batches[place]
        return batch.load() if isinstance(batch, SpilledArray) else batch


class Activations:
    """The activations of one network that later nodes still need, as batches; much of many samples waits on disk."""

    def __init__(self, view: GraphView, inputs: Batches | StagedBatches) -> None:
        self._floor = memory.give_back()  # what the walk before held
        self.view = view
        staged = inputs if isinstance(inputs, StagedBatches) else StagedBatches(inputs)
        shapes = {name: view.shape(name) for name in view.input_names}
        fitted = [fit_feeds(batch, shapes) for batch in staged.first]
        self.values: dict[str, Sequence[Array]] = {name: [batch[name] for batch in fitted] for name in fitted[0]}
        self._counts = [sample_count(batch) for batch in fitted]  # samples of every batch
        self._stages = {stage.node: stage for stage in staged.stages}
        self.sessions = NodeSessions(view)
        self._readers = Counter(n for node in view.nodes for n in read_names(node))
        self._needed: set[str] | None = None

    def walk(
        self, looked_at: LookedAt | None = None, tell: Tell = lambda done, total: None, until: int | None = None
    ) -> Iterator[NodeProto]:
        """Yield the nodes in order, to be run by the caller; forget after each what no later one reads.

        It ends behind the tensors that are looked at, where these are known, as before a language model's scores, which
        take more than all the rest; :meth:`run` runs no other node. Else it ends after `until` nodes.
        """
        nodes = self.view.nodes[:until]
        if looked_at is not None:
            self.limit(looked_at)
            nodes = nodes[: max((i for i, node in enumerate(nodes) if node_key(node) in looked_at), default=-1) + 1]
        for done, node in enumerate(nodes):
            tell(done, len(nodes))
            self.begin_stage(node)
            yield node
            self.release(node)

    def begin_stage(self, node: NodeProto) -> None:
        """Go on with larger batches, and more of them, where a node is the first of a stage."""
        stage = self._stages.pop(node_key(node), None)
        if stage is not None:
            self._keep(self._batches_of(stage))

    def _batches_of(self, stage: Stage) -> Iterator[dict[str, Array]]:
        """Yield the batches before, joined where samples lie along axis 0 of all they hold, and the new ones."""
        before, self._counts = self._counts, []
        is_whole = all(
            isinstance(values, np.ndarray) and values.ndim and len(values) == count
            for batches in self.values.values()
            for values, count in zip(batches, before, strict=True)
        )
        for places in _neighbours(before, stage.size if is_whole else 1):
            self._counts.append(sum(before[place] for place in places))
            yield {
                name: np.concatenate([batches[place] for place in places]) if len(places) > 1 else batches[places[0]]
                for name, batches in self.values.items()
            }
        inside = [name for name in self.values if name not in self.view.input_names]
        front = _Front(self.view, inside) if stage.joining and inside else None
        for places in _neighbours([sample_count(batch) for batch in stage.joining], stage.size if is_whole else 1):
            batches = [stage.joining[place] for place in places]
            values = {} if front is None else front.run(batches)
            self._counts.append(count_samples(batches))
            yield {n: values[n] if n in values else np.concatenate([b[n] for b in batches]) for n in self.values}

    def limit(self, looked_at: LookedAt) -> None:
        """Run no node that none of the tensors that are looked at depends on."""
        tensors = {name for names in looked_at.values() for name in names}
        self._needed = needed_nodes(self.view, tensors, {})

    def runs(self, node: NodeProto) -> bool:
        """Whether a node is run."""
        return self._needed is None or node_key(node) in self._needed

    def run(self, node: NodeProto, run_one: RunOne = lambda runner, _, feeds: runner.run(feeds)) -> None:
        """Run a node on every batch."""
        if not self.runs(node):
            return
        runner = NodeRunner(self.view, node, self.sessions)
        self._keep(
            run_one(runner, batch, {n: self.values[n][batch] for n in runner.inputs})
            for batch in range(len(self._counts))
        )

    def change(self, name: str, change: Callable[[Array], Array]) -> None:
        """Change every batch of a tensor."""
        self._keep({name: change(values)} for values in self.values[name])

    def _keep(self, made: Iterable[Mapping[str, Array]]) -> None:
        held = sum(values.held_bytes for values in self.values.values() if isinstance(values, WaitingBatches))
        results: dict[str, WaitingBatches] = {}
        for batch in made:
            for name, values in batch.items():
                room = _HELD_BYTES - held - sum(waiting.held_bytes for waiting in results.values())
                results.setdefault(name, WaitingBatches(self.view.spill)).add(values, room)
        self.values.update(results)
        if memory.held_bytes() > self._floor + _HELD_BYTES:
            self._floor = memory.give_back()

    def fork(self, count: int = 1) -> None:
        """Let more batches, the last ones then, go on from where as many first ones are."""
        for name, batches in self.values.items():
            if isinstance(batches, WaitingBatches):
                batches.repeat_first(count)
            else:
                self.values[name] = [*batches, *batches[:count]]
        self._counts += self._counts[:count]

    def release(self, node: NodeProto) -> None:
        """Forget what nobody reads after this node."""
        for name in read_names(node):
            self._readers[name] -= 1
        for name in [*read_names(node), *node.output]:
            if self._readers[name] <= 0:
                self.values.pop(name, None)


class _Front:
    """Runs what is in front of some tensors of a network, as a whole."""

    def __init__(self, view: GraphView, tensors: list[str]) -> None:
        self._session = Session(part_of(view, tensors), keeps_memory=True)
        self._session.output_names = tensors
        self._read = [info.name for info in self._session.inputs]

    def run(self, batches: Batches) -> dict[str, Array]:
        """Return the tensors by name, of several batches joined along axis 0."""
        made = [self._session.run({name: batch[name] for name in self._read}) for batch in batches]
        return dict(zip(self._session.output_names, joined_outputs(made) if len(made) > 1 else made[0], strict=True))


def _neighbours(counts: Sequence[int], size: int) -> list[list[int]]:
    """Return the places of batches that together have no more samples than a size; each of one batch at least."""
    runs: list[list[int]] = []
    for place, count in enumerate(counts):
        if runs and count + sum(counts[i] for i in runs[-1]) <= size:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


#: Smallest and largest value of a tensor.
Range = tuple[np.float32, np.float32]


def activation_ranges(view: GraphView, inputs: Batches, progress: Progress = silent) -> dict[str, Range]:
    """Run a network once; return the smallest and largest value of every float32 tensor that it computes or is given.

    Tensors without elements have no range, and neither have those inside of bodies.
    """
    activations = Activations(view, inputs)
    ranges = {name: _range(name, values) for name, values in activations.values.items() if _is_measured(values)}
    for node in activations.walk(tell=partial(progress, "measure ranges")):
        activations.run(node)
        for name in filter(None, node.output):
            if _is_measured(activations.values[name]):
                ranges[name] = _range(name, activations.values[name])
    return ranges


def _is_measured(batches: Sequence[Array]) -> bool:
    return batches[0].dtype == np.float32 and any(values.size for values in batches)


def _range(name: str, batches: Sequence[Array]) -> Range:
    low = np.float32(min(values.min() for values in batches if values.size))
    high = np.float32(max(values.max() for values in batches if values.size))
    if not np.isfinite(low) or not np.isfinite(high):
        raise VerificationError(f"tensor '{name}' is infinite or NaN on these inputs: it has no range")
    return low, high
