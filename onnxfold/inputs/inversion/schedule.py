"""The number of steps of an inversion, and the decay of its learning rate.

The number of steps that is planned follows from counted costs. A batch takes fewer where its statistics stop improving,
and where the time is up. Either way, its learning rate depends on nothing but the number of steps that it took: asked
to take so many, it comes to the same inputs.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from onnxfold.inputs.inversion.settings import InversionSettings


@dataclass
class Schedule:
    """The steps of one batch.

    Attributes
    ----------
    end : int
        Steps to take, by the present plan.
    cut : bool
        Whether the time limit made them fewer.
    """

    settings: InversionSettings  # share of the steps over which the learning rate falls; when a loss counts as flat
    planned: int
    exact: int | None = None  # steps to take without regard to loss and time
    seconds: float = math.inf  # time for this batch. One that is too short for two steps is exceeded
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    end: int = 0
    cut: bool = False
    _losses: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = self.planned if self.exact is None else self.exact
        self._start = self.clock()

    @property
    def done(self) -> int:
        """Steps taken."""
        return len(self._losses)

    @property
    def running(self) -> bool:
        """Whether there is another step to take."""
        return self.done < self.end

    @property
    def rate(self) -> float:
        """Part of the learning rate that the next step takes."""
        return min((self.end - self.done) / max(self._settling_steps(self.end), 1), 1.0)

    def note(self, loss: float) -> None:
        """Take note of a step, whose loss is what shall improve."""
        self._losses.append(loss)
        self._times.append(self.clock())
        if self.exact is not None:
            return
        end = self._end_if_settled_after(self.done)
        if end < self.end and (self._is_flat() or self._time_is_up()):
            self.end = end

    def _settling_steps(self, steps: int) -> int:
        """Return over how many of so many steps the learning rate falls."""
        return math.ceil(self.settings.settling * steps)

    def _end_if_settled_after(self, done: int) -> int:
        """Return the fewest steps whose learning rate falls only after these; once it falls, the end is fixed."""
        return next((n for n in range(done, self.end) if n - self._settling_steps(n) >= done), self.end)

    def _is_flat(self) -> bool:
        window = self.settings.window
        if self.done < 2 * window:
            return False
        # Medians: single steps of Adam overshoot by far.
        before, now = np.median(self._losses[-2 * window : -window]), np.median(self._losses[-window:])
        return bool(before - now < self.settings.tolerance * abs(before))

    def _time_is_up(self) -> bool:
        """Whether another step, and those that then must follow, would take too long."""
        elapsed = self._times[-1] - self._start
        # The first step, which prepares much, says little about the others.
        per_step = float(np.median(np.diff(self._times))) if self.done > 1 else 0.0
        following = self._end_if_settled_after(self.done + 1) - self.done
        self.cut = elapsed + per_step * following > self.seconds
        return self.cut
