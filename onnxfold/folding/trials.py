"""Trials of small changes to a network: what its outputs lose by each.

All trials are batches beside each other in one walk over the nodes. A trial's batch begins where the first of its
changes is met; before that it is what the original is.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from onnxfold.graph.nodes import node_key
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.tokens.answers import Answers, TokenAnswers
from onnxfold.statistics.activations import Activations


@dataclass(frozen=True)
class Change:
    """What a trial lets one node read in place of an activation.

    Parameters
    ----------
    trial : int
        The number of the trial.
    tensor : str
        The activation.
    instead : callable
        Takes its values, returns others.
    """

    trial: int
    tensor: str
    instead: Callable[[Array], Array]


@dataclass(eq=False)
class Outcome:
    """What became of a trial.

    Parameters
    ----------
    place : int
        The number of its batch.
    local : float
        Sum of the relative errors of the nodes that read something else, where these are measured.
    lost : list of float
        What every output loses; NaN where that is not known.
    """

    place: int
    local: float = 0.0
    lost: list[float] = field(default_factory=list)

    @property
    def mean_loss(self) -> float:
        """What an output loses in the mean; NaN where nothing is known."""
        known = [loss for loss in self.lost if np.isfinite(loss)]
        return float(np.mean(known)) if known else np.nan


def run_trials(
    view: GraphView,
    batch: dict[str, Array],
    changes: Mapping[str, Sequence[Change]],
    told: Callable[[int, int], None],
    *,
    tokens: TokenAnswers | None = None,
    locally: bool = False,
) -> dict[int, Outcome]:
    """Return what became of every trial that met one of its changes.

    Parameters
    ----------
    view : GraphView
        The network.
    batch : dict
        A few samples.
    changes : mapping of str to sequence of Change
        By the key of the node that reads.
    told : callable
        Called for every node with its number and how many there are.
    tokens : TokenAnswers, optional
        What the outputs of a language model are: of scores the divergence is measured, of others the relative error.
        Every position is a sample there, and caches are no answers.
    locally : bool
        Whether the errors of the nodes that read something else are measured, too.

    Raises
    ------
    VerificationError
        If onnxruntime cannot run one of the nodes.
    """
    walk, outcomes = Activations(view, [batch]), dict[int, Outcome]()
    answers = set(view.output_names) - set(tokens.states if tokens is not None else ())
    nodes = view.nodes
    for done, node in enumerate(nodes):
        told(done, len(nodes))
        instead: dict[int, dict[str, Array]] = {}
        was: dict[int, Array] = {}
        for change in changes.get(node_key(node), ()):
            if change.tensor not in walk.values:
                continue
            if change.trial not in outcomes:
                outcomes[change.trial] = Outcome(walk.fork())
            place = outcomes[change.trial].place
            if locally:
                was[change.trial] = walk.trial(node, place)
            instead.setdefault(place, {})[change.tensor] = change.instead(walk.values[change.tensor][place])
        # Scores of all words take most of the memory: where nothing reads them, only one batch is there at a time.
        results: Iterator[dict[str, Array]] = walk.results(node, instead)
        if was or any(map(walk.is_read, node.output)):
            walk.run(node, instead)
            for trial, values in was.items():
                outcome = outcomes[trial]
                outcome.local += relative_error(values, walk.values[node.output[0]][outcome.place])
            results = walk.batches(node)
        given = [name for name in node.output if name in answers]
        if given:
            by_place = {outcome.place: outcome for outcome in outcomes.values()}
            for place, lost in enumerate(_lost_answers(results, given, tokens), 1):
                by_place[place].lost += lost
        walk.release(node)
    return outcomes


def _lost_answers(
    results: Iterator[dict[str, Array]], names: Sequence[str], tokens: TokenAnswers | None
) -> Iterator[list[float]]:
    """Yield what every batch but the first, the original's, loses of some outputs; only floats are compared."""
    first = next(results)
    losses = {name: _loss(first[name], tokens) for name in names if first[name].dtype.kind == "f"}
    for result in results:
        yield [loss(result[name]) for name, loss in losses.items()]


def _loss(was: Array, tokens: TokenAnswers | None) -> Callable[[Array], float]:
    """Return what measures how much of an output is lost."""
    if tokens is None:
        return partial(relative_error, was)
    if tokens.are_scores(was):
        return Answers(was).divergence
    return lambda is_now: relative_error(*(values.reshape(-1, values.shape[-1]) for values in (was, is_now)))


def relative_error(was: Array, is_now: Array) -> float:
    """Return the squared error relative to the variance over samples, or to the square of a single one; NaN if zero."""
    was, is_now = was.astype(np.float64), is_now.astype(np.float64)
    scale = float(np.square(was - was.mean(axis=0) if len(was) > 1 else was).sum())
    return float(np.square(is_now - was).sum()) / scale if scale > 0.0 else np.nan
