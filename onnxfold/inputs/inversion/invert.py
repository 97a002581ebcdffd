"""Inversion of a sequence of batches, grouped for optimisation."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from onnxfold.errors import UnsupportedModelError
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion.batches import Clock, run_batches
from onnxfold.inputs.inversion.descent import Descent
from onnxfold.inputs.inversion.objective import InversionObjective
from onnxfold.inputs.inversion.settings import Inversion, InversionSettings, LossTerms
from onnxfold.inputs.inversion.targets import class_scores, fused_layers, normalizations, optimised_inputs
from onnxfold.machine.instructions import multiplies_bfloat16
from onnxfold.machine.threads import crowd, usable_cores
from onnxfold.progress import Progress

Batches = list[dict[str, Array]]

#: Elements that torch adds up in more than one thread.
_PARALLEL = 1 << 17


def invert(view: GraphView, start: Batches, settings: InversionSettings, seed: int, progress: Progress) -> Inversion:
    """Optimise batches of inputs."""
    names = optimised_inputs(view)
    norms, scores = normalizations(view), class_scores(view)
    fused = [] if norms else fused_layers(view)
    objective = InversionObjective(view, norms, scores, fused=fused)
    lengths = [len(batch[names[0]]) for batch in start]
    whole = _join_batches(start, lengths, names)
    samples = sum(lengths)
    probe = _Probe(view, objective, whole, names[0])
    parts = _parts(samples, probe, settings)
    labels = _labels(samples, probe.classes, seed).to(objective.graph.device)
    if settings.bfloat16 and multiplies_bfloat16():
        few = {n: objective.graph.tensor(v) for n, v in _take(whole, probe.few, samples).items()}
        objective = (
            _half_objective(InversionObjective(view, norms, scores, fused=fused, half=True), few, names, labels)
            or objective
        )

    result = {n: np.empty_like(whole[n]) for n in names}
    descents = [Descent(objective, settings, seed, i) for i in range(len(parts))]
    workers = _workers(parts, probe, settings)
    clock = Clock(settings, descents[0].planned, len(parts), workers)

    def optimise(i: int) -> tuple[LossTerms, LossTerms]:
        part, descent = parts[i], descents[i]
        feeds = {n: objective.graph.tensor(v) for n, v in _take(whole, part, samples).items()}
        before = descent.measure(feeds, names, labels[part])
        optimised_values = descent.run(feeds, names, labels[part], clock.start(i), clock.check)
        after = descent.measure({**feeds, **optimised_values}, names, labels[part])
        for name, values in optimised_values.items():
            result[name][part] = values.cpu().numpy().astype(whole[name].dtype)
        return before, after

    losses = run_batches(optimise, len(parts), workers, clock, progress)
    inputs = _split(start, result, lengths)
    schedules = [clock.schedules[i] for i in range(len(parts))]
    steps, cut = tuple(schedule.done for schedule in schedules), any(schedule.cut for schedule in schedules)
    before, after = (_mean([pair[i] for pair in losses]) for i in (0, 1))
    return Inversion(inputs, before, after, steps, clock.planned, cut)


def _workers(parts: list[slice], probe: "_Probe", settings: InversionSettings) -> int:
    """Return how many batches are optimised at a time.

    Two small batches in a thread each take half as long as one after the other in two threads, which would wait for
    each other at every operation. Batches that the threads cannot share out evenly, or that do not fit into memory
    beside each other, are optimised one by one.
    """
    threads = torch.get_num_threads()
    largest = max(part.stop - part.start for part in parts) * probe.bytes_per_sample
    return threads if len(parts) % threads == 0 and threads * largest <= settings.memory_bytes else 1


def _half_objective(
    objective: InversionObjective, feeds: dict[str, Tensor], names: list[str], labels: Tensor
) -> InversionObjective | None:
    """Return an objective that computes in half precision, None where an operator does not take it."""
    leaves = {n: feeds[n].clone().requires_grad_() for n in names}
    try:
        terms = objective.terms({**feeds, **leaves}, labels[: len(feeds[names[0]])])
        torch.stack(terms.present).sum().backward()  # type: ignore[no-untyped-call]
    except (UnsupportedModelError, RuntimeError):
        return None
    return objective


class _Probe:
    """Result of a run on a few samples.

    Attributes
    ----------
    few : slice
        The samples.
    fixed : int or None
        The batch that the graph insists on.
    bytes_per_sample : int
        Memory for the activations of one sample.
    classes : int
        Number of classes, 0 without class scores.
    """

    def __init__(self, view: GraphView, objective: InversionObjective, whole: dict[str, Array], name: str) -> None:
        samples = len(whole[name])
        declared = (view.shape(name) or (None,))[0]
        self.few = slice(0, declared or min(2, samples))
        feeds = {n: objective.graph.tensor(v) for n, v in _take(whole, self.few, samples).items()}
        names = list(dict.fromkeys([*objective.wanted, *(o for n in view.nodes for o in n.output if o)]))
        with torch.no_grad():
            tensors = objective.graph.run(feeds, names)
            self.bytes_per_sample = sum(t.nbytes for t in tensors.values()) // len(feeds[name])
            scores = tensors[objective.scores] if objective.scores else None
            if scores is not None and len(scores) != len(feeds[name]):
                raise UnsupportedModelError(
                    f"deep inversion is not possible: '{objective.scores}' does not hold one row of class scores per "
                    "sample; use other inputs"
                )
            self.classes = 0 if scores is None else scores.flatten(1).shape[1]
            self.fixed = None if declared is None or _takes_any_batch(objective, feeds, tensors) else declared


def _takes_any_batch(objective: InversionObjective, feeds: dict[str, Tensor], tensors: dict[str, Tensor]) -> bool:
    """Whether a graph with a declared batch computes the same for two batches at once, as most do."""
    size = max(len(t) for t in feeds.values() if t.ndim)
    twice = {n: torch.cat([t, t]) if t.ndim and len(t) == size else t for n, t in feeds.items()}
    try:
        both = objective.graph.run(twice, objective.wanted)
    except UnsupportedModelError:
        return False
    return all(
        len(t) == 2 * len(tensors[n]) and torch.allclose(t, torch.cat([tensors[n]] * 2), rtol=1e-3, atol=1e-3)
        for n, t in both.items()
    )


def _parts(samples: int, probe: _Probe, settings: InversionSettings) -> list[slice]:
    """Return equal parts of the samples, as large as settings, memory and graph allow."""
    size = probe.fixed or max(min(settings.batch, settings.memory_bytes // probe.bytes_per_sample), 1)
    bounds = np.linspace(0, samples, -(-samples // size) + 1).round().astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(bounds)]


def _labels(samples: int, classes: int, seed: int) -> Tensor:
    """Return labels of which every `classes` in a row are all classes, in random order."""
    order = np.random.default_rng(seed).permutation(max(classes, 1))
    return torch.from_numpy(np.resize(order, samples))


def _join_batches(batches: Batches, lengths: list[int], names: list[str]) -> dict[str, Array]:
    """Return the samples of all batches; an input without a batch axis is taken from the first."""
    whole = {}
    for name, first in batches[0].items():
        sampled = name in names or all(
            b[name].ndim and len(b[name]) == n for b, n in zip(batches, lengths, strict=True)
        )
        whole[name] = np.concatenate([b[name] for b in batches]) if sampled else first
    return whole


def _take(whole: dict[str, Array], part: slice, samples: int) -> dict[str, Array]:
    return {n: v[part] if v.ndim and len(v) == samples else v for n, v in whole.items()}


def _split(start: Batches, result: dict[str, Array], lengths: list[int]) -> Batches:
    ends = np.cumsum(lengths).tolist()
    return [
        {**batch, **{n: v[end - length : end] for n, v in result.items()}}
        for batch, length, end in zip(start, lengths, ends, strict=True)
    ]


def _mean(terms: list[LossTerms]) -> LossTerms:
    def mean(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return float(np.mean(known)) if known else None

    return LossTerms(
        statistics=mean([t.statistics for t in terms]),
        evenness=mean([t.evenness for t in terms]),
        class_scores=mean([t.class_scores for t in terms]),
        variation=float(np.mean([t.variation for t in terms])),
        square=float(np.mean([t.square for t in terms])),
    )


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads inside, and as many as before afterwards.

    None takes as many as torch is set to, and no more than there are cores.
    """
    before = torch.get_num_threads()
    count = count or min(before, usable_cores())
    torch.set_num_threads(count)
    try:
        with crowd(lambda: torch.ones(_PARALLEL).add_(1.0), count):
            yield
    finally:
        torch.set_num_threads(before)
