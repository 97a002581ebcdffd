"""Inversion of a sequence of batches, grouped for optimisation."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from threading import Event, Lock
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from onnxfold.errors import ConfigError, UnsupportedModelError
from onnxfold.graph.run.session import joined_feeds
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.inversion.deep_inversion import Inversion, InversionSettings, LossTerms, Schedule
from onnxfold.inputs.inversion.descent import Descent, InversionObjective
from onnxfold.machine.instructions import multiplies_bfloat16
from onnxfold.machine.threads import crowd, usable_cores
from onnxfold.progress import Progress
from onnxfold.statistics.activations import Batches
from onnxfold.torch_graph.free_batch import takes_any_batch, with_free_batch

_Result = TypeVar("_Result")

#: Between two reports of the progress, in seconds.
_INTERVAL = 0.2


class StoppedError(Exception):
    """The work was given up in the middle of a batch."""


class Clock:
    """Gives every batch its steps and an equal share of the remaining time."""

    def __init__(self, settings: InversionSettings, planned: int, batches: int, workers: int = 1) -> None:
        exact: tuple[int | None, ...] = settings.exact_steps or (None,)
        if len(exact) not in (1, batches):
            raise ConfigError(
                f"{len(exact)} numbers of inversion steps are given for {batches} batches: "
                "give one number per batch, or one for all"
            )
        self.schedules = [Schedule(settings, planned, steps) for steps in exact * (batches // len(exact))]
        self.tell: Callable[[], None] = lambda: None
        self.stopped = Event()
        self._waiting, self._workers, self._lock = batches, workers, Lock()
        self._deadline = time.monotonic() + settings.seconds

    def start(self, batch: int) -> Schedule:
        """Return the schedule of a batch that starts now."""
        with self._lock:
            rounds = -(-self._waiting // self._workers)
            self._waiting -= 1
        self.schedules[batch].begin((self._deadline - time.monotonic()) / rounds)
        return self.schedules[batch]

    def check(self) -> None:
        """Before every step of a batch: tell about it, or give up."""
        if self.stopped.is_set():
            raise StoppedError
        self.tell()

    @property
    def steps(self) -> tuple[int, int]:
        """Steps done, and their number if batches that have not started take as many as planned."""
        return sum(schedule.done for schedule in self.schedules), sum(schedule.end for schedule in self.schedules)


def run_batches(
    work: Callable[[int], _Result], batches: int, workers: int, clock: Clock, progress: Progress
) -> list[_Result]:
    """Return the results of `work` for every batch, `workers` at a time, each in one of the threads of torch."""

    def tell() -> None:
        progress("deep inversion", *clock.steps)

    if workers == 1:
        clock.tell = tell
        return [work(i) for i in range(batches)]
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = [pool.submit(work, i) for i in range(batches)]
        try:
            while True:
                tell()
                done, left = wait(futures, _INTERVAL, FIRST_EXCEPTION)
                for future in done:
                    future.result()  # raises what it raised
                if not left:
                    return [future.result() for future in futures]
        finally:
            clock.stopped.set()
            for future in futures:
                future.cancel()


#: Of a network of large images that has no statistics to meet, batches beside each other take so small a part of the
#: memory, and there are so many of them at least.
_SMALLER, _BESIDE = 4, 2
#: Elements that torch adds up in more than one thread.
_PARALLEL = 1 << 17


def invert(view: GraphView, start: Batches, settings: InversionSettings, seed: int, progress: Progress) -> Inversion:
    """Optimise batches of inputs."""
    view = with_free_batch(view)  # no single image has the statistics of data
    objective = InversionObjective(view)
    names = objective.names
    lengths = [len(batch[names[0]]) for batch in start]
    whole = joined_feeds(start, lengths, names)
    samples = sum(lengths)
    probe = _Probe(view, objective, whole, names[0])
    needed, beside = min(samples, settings.batch) * probe.bytes_per_sample, 1
    if needed > settings.memory_bytes and not objective.has_statistics:  # evenness needs no more images
        settings, beside = replace(settings, memory_bytes=settings.memory_bytes // _SMALLER), _BESIDE
    parts = _parts(samples, probe, settings, beside)
    # Of labels, every `classes` in a row are all classes, in random order.
    order = np.random.default_rng(seed).permutation(max(probe.classes, 1))
    labels = torch.from_numpy(np.resize(order, samples)).to(objective.graph.device)
    if settings.bfloat16 and multiplies_bfloat16():
        half, trial = InversionObjective(view, half=True), Schedule(settings, 1, exact=1)
        with suppress(UnsupportedModelError, RuntimeError):  # where an operator does not take this precision
            Descent(half, settings, seed).run(probe.feeds, labels[probe.few], trial, lambda: None)
            objective = half

    descents = [Descent(objective, settings, seed, i) for i in range(len(parts))]
    workers = _workers(parts, probe, settings)
    clock = Clock(settings, descents[0].planned, len(parts), workers)

    def optimise(i: int) -> tuple[LossTerms, LossTerms]:
        part, descent = parts[i], descents[i]
        feeds = _feeds(objective, whole, part, samples)
        before = descent.measure(feeds, labels[part])
        optimised_values = descent.run(feeds, labels[part], clock.start(i), clock.check)
        after = descent.measure({**feeds, **optimised_values}, labels[part])
        for name, values in optimised_values.items():
            whole[name][part] = values.cpu().numpy()
        return before, after

    losses = run_batches(optimise, len(parts), workers, clock, progress)
    inputs = _split(start, {n: whole[n] for n in names}, lengths)
    steps, cut = tuple(schedule.done for schedule in clock.schedules), any(s.cut for s in clock.schedules)
    before, after = ({n: float(np.mean([pair[i][n] for pair in losses])) for n in losses[0][i]} for i in (0, 1))
    return Inversion(inputs, before, after, steps, descents[0].planned, cut)


def _workers(parts: list[slice], probe: "_Probe", settings: InversionSettings) -> int:
    """Return how many batches are optimised at a time: two in a thread each take half as long as in two threads."""
    threads = torch.get_num_threads()
    largest = max(part.stop - part.start for part in parts) * probe.bytes_per_sample
    return threads if len(parts) % threads == 0 and threads * largest <= settings.memory_bytes else 1


class _Probe:
    """A run on a few samples: the memory for the activations of one, the classes (0 without scores), a fixed batch."""

    def __init__(self, view: GraphView, objective: InversionObjective, whole: dict[str, Array], name: str) -> None:
        samples = len(whole[name])
        declared = (view.shape(name) or (None,))[0]
        self.few = slice(0, declared or min(2, samples))
        self.feeds = feeds = _feeds(objective, whole, self.few, samples)
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
            answers = {name: tensors[name] for name in objective.wanted}
            self.fixed = None if declared is None or takes_any_batch(objective.graph, feeds, answers) else declared


def _parts(samples: int, probe: _Probe, settings: InversionSettings, beside: int) -> list[slice]:
    """Return equal parts of the samples, as large as settings, graph and memory for so many beside each other allow."""
    size = probe.fixed or max(min(settings.batch, settings.memory_bytes // beside // probe.bytes_per_sample), 1)
    count = -(-samples // size)
    count += 0 if probe.fixed else min(-count % beside, samples - count)
    bounds = np.linspace(0, samples, count + 1).round().astype(int).tolist()
    return [slice(a, b) for a, b in pairwise(bounds)]


def _feeds(objective: InversionObjective, whole: dict[str, Array], part: slice, samples: int) -> dict[str, Tensor]:
    return {n: objective.graph.tensor(v[part] if v.ndim and len(v) == samples else v) for n, v in whole.items()}


def _split(start: Batches, result: dict[str, Array], lengths: list[int]) -> Batches:
    parts = {n: np.split(v, np.cumsum(lengths)[:-1]) for n, v in result.items()}
    return [batch | {n: values[i] for n, values in parts.items()} for i, batch in enumerate(start)]


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
