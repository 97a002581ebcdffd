"""Trials of small changes to a network: what its outputs lose by each.

All trials are batches beside each other in one walk over the nodes. A trial's batches begin where the first of its
changes is met; before that they are what the original's are. There is one, but several where its size is fixed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from onnx import NodeProto

from onnxfold.graph.nodes import node_key, read_names
from onnxfold.graph.run.node_runner import NodeRunner
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.answers import Answers, TokenAnswers
from onnxfold.statistics.activations import Activations, Batches
from onnxfold.statistics.samples import parts

#: Numbers that are compared at a time.
_NUMBERS = 1 << 22
#: The last nodes of a language model, as many at most, are run on one batch after the other, for the size of its
#: scores; what runs them is kept meanwhile, which for images takes more than a walk.
_ALONE = 16


@dataclass(frozen=True)
class Change:
    """Values that a trial lets a node read in place of an activation."""

    trial: int  # the number of the trial
    tensor: str
    #: Takes all its batches, and returns the function that gives others in place of each.
    instead: Callable[[Iterable[Array]], Callable[[Array], Array]]


@dataclass(eq=False)
class TrialOutcome:
    """The losses of a trial."""

    local: float = 0.0  # sum of the relative errors of the nodes that read something else; not of language models
    lost: list[float] = field(default_factory=list)  # what every output loses; NaN where that is not known

    @property
    def mean_loss(self) -> float:
        """The mean loss of an output; NaN where no loss is known."""
        known = [loss for loss in self.lost if np.isfinite(loss)]
        return float(np.mean(known)) if known else np.nan


def run_trials(
    view: GraphView, batches: Batches, changes: Mapping[str, Sequence[Change]], tell: Callable[[int, int], None],
    *, tokens: TokenAnswers | None = None,
) -> dict[int, TrialOutcome]:  # fmt: skip
    """Return the outcome of every trial that met any of its changes."""
    trials = _Trials(Activations(view, batches), len(batches), changes, tokens)
    nodes = view.nodes
    changed = [i for i, node in enumerate(nodes) if node_key(node) in changes]
    alone = max(*changed, len(nodes) - _ALONE) if changed and tokens is not None else len(nodes)
    for node in trials.walk.walk(tell=lambda done, _: tell(done, len(nodes)), until=alone):
        trials.run(node)
    tell(alone, len(nodes))
    if alone < len(nodes):
        trials.finish(nodes[alone:])
    return trials.outcomes


@dataclass(eq=False)
class _Trials:
    """The original's batches, and as many per trial behind them."""

    walk: Activations
    count: int  # batches of the original
    changes: Mapping[str, Sequence[Change]]
    tokens: TokenAnswers | None
    outcomes: dict[int, TrialOutcome] = field(default_factory=dict)
    #: How far other values of an output are from them, batch by batch.
    losses: dict[str, Callable[[Sequence[Array]], float]] = field(default_factory=dict)
    functions: dict[Change, Callable[[Array], Array]] = field(default_factory=dict)  # of the trials so far
    #: Of the batches so far: what a node gives without a change and with it, and outputs by name.
    read: list[tuple[Array, Array]] = field(default_factory=list)
    made: dict[str, list[Array]] = field(default_factory=dict)

    @cached_property
    def answers(self) -> set[str]:
        """Outputs whose losses count."""
        return set(self.walk.view.output_names) - set(self.tokens.states if self.tokens is not None else ())

    def run(self, node: NodeProto) -> None:
        """Run a node on all batches; trials begin where the first of their changes is."""
        self._begin(node)
        self.walk.run(node, partial(self._run_one, node))

    def finish(self, nodes: Sequence[NodeProto]) -> None:
        """Run the last nodes, at the first of which the last trials begin at most, on one batch after the other.

        Scores of all words take most of the memory: those of one network are there at a time.
        """
        walk = self.walk
        self._begin(nodes[0])
        runners = [NodeRunner(walk.view, node, walk.sessions) for node in nodes]
        last = {name: i for i, node in enumerate(nodes) for name in read_names(node)}
        for place in range((len(self.outcomes) + 1) * self.count):
            values = {name: batches[place] for name, batches in walk.values.items()}
            for i, (node, runner) in enumerate(zip(nodes, runners, strict=True)):
                values |= self._run_one(node, runner, place, {name: values[name] for name in runner.inputs})
                for name in (*read_names(node), *node.output):
                    if last.get(name, -1) <= i:
                        values.pop(name, None)

    def _run_one(self, node: NodeProto, runner: NodeRunner, place: int, feeds: dict[str, Array]) -> dict[str, Array]:
        """Return the results of a node on a batch; note what a trial loses there, or what others are compared with."""
        # Behind the original's batches, as they began.
        trial, outcome = [(-1, None), *self.outcomes.items()][place // self.count]
        is_last = place % self.count == self.count - 1
        # What a recurrence reads is its own result.
        changes = [c for c in self.changes.get(node_key(node), ()) if c.trial == trial and c.tensor in feeds]
        outputs = runner.run(feeds | {c.tensor: self._instead(c, place, feeds[c.tensor]) for c in changes})
        if outcome is not None and changes and self.tokens is None:
            self.read.append((runner.run(feeds)[node.output[0]], outputs[node.output[0]]))
            if is_last:
                outcome.local += relative_error(*zip(*self.read, strict=True))
                self.read.clear()
        for name in self.answers.intersection(outputs):
            self.made.setdefault(name, []).append(outputs[name])
            made = self.made.pop(name) if is_last else []
            if made and outcome is None and made[0].dtype.kind == "f":
                self.losses[name] = _loss(made, self.tokens)
            elif made and outcome is not None and name in self.losses:
                outcome.lost.append(self.losses[name](made))
        return outputs

    def _instead(self, change: Change, place: int, values: Array) -> Array:
        """Return what a node reads in place of a batch."""
        if self.count == 1 or self.tokens is not None:  # whose last nodes are run on one batch after the other
            return change.instead([values])(values)
        if place % self.count == 0:
            batches = (self.walk.values[change.tensor][place + i] for i in range(self.count))
            self.functions[change] = change.instead(batches)
        return self.functions[change](values)

    def _begin(self, node: NodeProto) -> None:
        for change in self.changes.get(node_key(node), ()):
            if change.trial not in self.outcomes and change.tensor in self.walk.values:
                self.walk.fork(self.count)
                self.outcomes[change.trial] = TrialOutcome()


def _loss(was: Sequence[Array], tokens: TokenAnswers | None) -> Callable[[Sequence[Array]], float]:
    """Return the measure of the loss of an output."""
    if tokens is None:
        return partial(relative_error, was)
    if tokens.are_scores(was[0]):
        answers = [Answers(scores) for scores in was]
        return lambda is_now: float(np.mean([a.divergence(b) for a, b in zip(answers, is_now, strict=True)]))
    return lambda is_now: relative_error(*([v.reshape(-1, v.shape[-1]) for v in values] for values in (was, is_now)))


def relative_error(was: Sequence[Array], is_now: Sequence[Array]) -> float:
    """Return the squared error relative to the variance over samples, or to the square of a single one; NaN if zero."""
    lost = scale = 0.0
    rows = [[values.reshape(len(values), -1) for values in batches] for batches in (was, is_now)]
    for part in parts(rows[0][0].shape[1], max(_NUMBERS // sum(map(len, was)), 1)):
        before, after = (np.concatenate([v[:, part] for v in values], dtype=np.float64) for values in rows)
        scale += float(np.square(before - before.mean(axis=0) if len(before) > 1 else before).sum())
        lost += float(np.square(after - before).sum())
    return lost / scale if scale > 0.0 else np.nan
