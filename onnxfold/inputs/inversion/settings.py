"""Settings of deep inversion, the steps that it takes, and its result.

The number of steps that is planned follows from counted costs. A batch takes fewer where its statistics stop improving,
and where the time is up. Either way, its learning rate depends on nothing but the number of steps that it took: asked
to take so many, it comes to the same inputs.
"""

import math
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field

import numpy as np

from onnxfold.graph.tensors import Array


@dataclass(frozen=True)
class LossWeights:
    """Weights of the terms of the minimised loss, see :class:`LossTerms`."""

    statistics: float = 1.0
    class_scores: float = 0.1
    evenness: float = 1.0
    variation: float = 0.01
    square: float = 0.001


@dataclass(frozen=True)
class StepCounts:
    """Steps per batch."""

    statistics: int = 40  # where the model has BatchNormalizations
    fused: int = 18  # where BatchNormalizations seem to be fused into layers
    alone: int = 15  # where it has none: class scores alone lead away from data when followed for long

    def limited(self, most: int) -> "StepCounts":
        """Return no more steps than a number."""
        return StepCounts(*(min(steps, most) for steps in astuple(self)))


@dataclass(frozen=True)
class LearningRate:
    """The learning rate of Adam, in units of the inputs, and when it falls."""

    highest: float = 0.05
    #: Share of the steps, at the end, over which the learning rate falls to zero: at a constant one, single steps
    #: overshoot and the last one may be such.
    settling: float = 0.25
    #: Let the rate fall at once when the error of the statistics has, in the median over `window` steps, fallen by less
    #: than this fraction since the `window` before; without statistics the loss decides.
    window: int = 15
    tolerance: float = 0.01


@dataclass(frozen=True)
class InversionSettings:
    """Settings of an inversion."""

    steps: StepCounts = StepCounts()
    #: Steps of each batch, or of all, whatever the statistics and the clock say; empty to let them decide.
    exact_steps: tuple[int, ...] = ()
    #: Time for all batches: those that would exceed it settle earlier, and the result hangs on the machine's speed.
    seconds: float = math.inf
    rate: LearningRate = LearningRate()
    weights: LossWeights = LossWeights()
    weights_alone: LossWeights = LossWeights(class_scores=1.0, variation=0.1)  # without statistics or fused layers
    batch: int = 128  # samples per batch, if memory allows; the statistics of fewer samples are noisier
    memory_bytes: int = 1 << 30  # memory for the activations of one batch
    #: Multiply matrices in bfloat16 where the processor does: twice as fast. Sums, statistics and inputs stay float32.
    bfloat16: bool = True


@dataclass(frozen=True)
class LossTerms:
    """Parts of the objective, unweighted and averaged over batches; None where the model has no such part."""

    variation: float  # total variation, along spatial axes, and mean square of the inputs
    square: float
    statistics: float | None = None  # mean squared relative error of means and deviations, summed over normalisations
    evenness: float | None = None  # unevenness of the channels of layers with a fused BatchNormalization, summed
    class_scores: float | None = None  # cross-entropy of the intended classes, in nats


@dataclass(frozen=True)
class Inversion:
    """Inputs, and how far the optimisation came."""

    inputs: list[dict[str, Array]]  # batches of the sizes and types that were given
    initial: LossTerms  # of the inputs that were given, and of these
    final: LossTerms
    #: Steps of each of the batches that were optimised one after the other; as `exact_steps` they give the same inputs.
    steps_per_batch: tuple[int, ...]
    planned: int  # steps per batch that were planned
    cut: bool = False  # whether the clock made them fewer

    @property
    def steps(self) -> int:
        """Steps in all."""
        return sum(self.steps_per_batch)

    @property
    def batches(self) -> int:
        """Batches that were optimised, one at a time."""
        return len(self.steps_per_batch)


@dataclass
class Schedule:
    """The steps of one batch."""

    learning: LearningRate  # share of the steps over which the learning rate falls; when a loss counts as flat
    planned: int
    exact: int | None = None  # steps to take without regard to loss and time
    seconds: float = math.inf  # time for this batch. One that is too short for two steps is exceeded
    clock: Callable[[], float] = time.monotonic  # returns the time in seconds
    end: int = 0  # steps to take, by the present plan
    cut: bool = False  # whether the time limit made them fewer
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
        return math.ceil(self.learning.settling * steps)

    def _end_if_settled_after(self, done: int) -> int:
        """Return the fewest steps whose learning rate falls only after these; once it falls, the end is fixed."""
        return next((n for n in range(done, self.end) if n - self._settling_steps(n) >= done), self.end)

    def _is_flat(self) -> bool:
        window = self.learning.window
        if self.done < 2 * window:
            return False
        # Medians: single steps of Adam overshoot by far.
        before, now = np.median(self._losses[-2 * window : -window]), np.median(self._losses[-window:])
        return bool(before - now < self.learning.tolerance * abs(before))

    def _time_is_up(self) -> bool:
        """Whether another step, and those that then must follow, would take too long."""
        elapsed = self._times[-1] - self._start
        # The first step, which prepares much, says little about the others.
        per_step = float(np.median(np.diff(self._times))) if self.done > 1 else 0.0
        following = self._end_if_settled_after(self.done + 1) - self.done
        self.cut = elapsed + per_step * following > self.seconds
        return self.cut
