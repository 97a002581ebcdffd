"""Batches that are optimised one after the other, or a few at a time: their steps, their time, their threads."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event, Lock
from typing import TypeVar

import torch

from onnxfold.errors import ConfigError
from onnxfold.inputs.inversion.settings import InversionSettings, Schedule
from onnxfold.progress import Progress

_Result = TypeVar("_Result")

#: Between two reports of the progress, in seconds.
_INTERVAL = 0.2


class StoppedError(Exception):
    """The work was given up in the middle of a batch."""


class Clock:
    """Gives every batch its steps and an equal share of the remaining time."""

    def __init__(self, settings: InversionSettings, planned: int, batches: int, workers: int = 1) -> None:
        exact = settings.exact_steps
        if len(exact) > 1 and len(exact) != batches:
            raise ConfigError(
                f"{len(exact)} numbers of inversion steps are given for {batches} batches: "
                "give one number per batch, or one for all"
            )
        self.planned = planned
        self.schedules: dict[int, Schedule] = {}
        self.tell: Callable[[], None] = lambda: None
        self.stopped = Event()
        self._rate, self._workers, self._lock = settings.rate, workers, Lock()
        self._exact: list[int | None] = [*exact] * batches if len(exact) == 1 else [*exact] or [None] * batches
        self._deadline = time.monotonic() + settings.seconds

    def start(self, batch: int) -> Schedule:
        """Return the schedule of a batch that starts now."""
        with self._lock:
            rounds = -(-(len(self._exact) - len(self.schedules)) // self._workers)
            share = (self._deadline - time.monotonic()) / max(rounds, 1)
            self.schedules[batch] = Schedule(self._rate, self.planned, self._exact[batch], share)
            return self.schedules[batch]

    def check(self, _: Schedule) -> None:
        """Before every step of a batch: tell about it, or give up."""
        if self.stopped.is_set():
            raise StoppedError
        self.tell()

    @property
    def steps(self) -> tuple[int, int]:
        """Steps done, and their number if batches that have not started take as many as planned."""
        with self._lock:
            started = dict(self.schedules)
        later = [n or self.planned for i, n in enumerate(self._exact) if i not in started]
        return sum(s.done for s in started.values()), sum(s.end for s in started.values()) + sum(later)


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
