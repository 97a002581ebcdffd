"""Times of several runs, taken in turn.

Whatever else runs on a machine slows it down for milliseconds to minutes. So nothing is timed alone: in every round
each run has its turn, and what is compared are times of the same round. A ratio is the median over rounds of the ratio
within a round; its spread is the distance of the quartiles of these ratios over their median.

Within its turn a run is repeated, and its seconds are the least of its repeats: what else runs only ever adds to them.

With one thread, seconds are those that the thread computes: on an idle machine these are the seconds that pass, and on
a busy one they are what would pass if the thread were not made to wait.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxfold.errors import MemoryLimitError, VerificationError
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import Feeds, InputInfo, Session
from onnxfold.graph.view import GraphView
from onnxfold.report import LatencyRecord

Clock = Callable[[], float]

#: Coarsest clock of computing that is used, in seconds; those of some systems count in hundredths.
_FINE_S = 1e-6

#: Fewest rounds, unless they take longer than :data:`LONGEST_S`; then at least :data:`_VERY_SLOW_ROUNDS`.
ROUNDS = 9
_VERY_SLOW_ROUNDS = 3
LONGEST_S = 30.0
#: Runs are repeated within a turn until it takes about so many seconds.
TURN_S = 2e-4
#: Runs that are shorter than this are timed together: a clock and a call take some of it.
_SHORTEST_S = 2e-4
_WARM_UP = 2
_MOST_REPEATS = 1000
#: The quantile of seconds that stands for a machine that does nothing else, and the part of the times in which an
#: interval misses its quantile, on either side.
_QUIET, _MISSED = 0.25, 0.025


@dataclass(frozen=True, eq=False)
class Timing:
    """Seconds of several runs, in rounds."""

    seconds: npt.NDArray[np.float64]  # seconds of each run; the least of its repeats in a turn

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.seconds)

    def median(self, run: int = 0) -> float:
        """Return the median seconds of a run."""
        return float(np.median(self.seconds[:, run]))

    def spread(self, run: int = 0) -> float:
        """Return the distance of the quartiles of a run's seconds, over their median."""
        return _spread(self.seconds[:, run])

    def ratio(self, run: int = 1) -> float:
        """Return the seconds of a run over those of the first: the median of the ratios within rounds."""
        return float(np.median(self._ratios(run)))

    def ratio_spread(self, run: int = 1) -> float:
        """Return the distance of the quartiles of these ratios, over their median."""
        return _spread(self._ratios(run))

    def ratio_interval(self, run: int = 1) -> tuple[float, float]:
        """Return between which ratios the median lies, with a confidence of 95 %."""
        return _interval(self._ratios(run), 0.5)

    def quiet_seconds(self, run: int = 0) -> float:
        """Return the lower quartile of a run's seconds: what else runs only ever adds to them."""
        return float(np.quantile(self.seconds[:, run], _QUIET))

    def quiet_interval(self, run: int = 0) -> tuple[float, float]:
        """Return between which seconds this quartile lies, with a confidence of 95 %."""
        return _interval(self.seconds[:, run], _QUIET)

    def join(self, other: "Timing") -> "Timing":
        """Return the rounds of both."""
        return Timing(np.concatenate([self.seconds, other.seconds]))

    def _ratios(self, run: int) -> npt.NDArray[np.float64]:
        return self.seconds[:, run] / self.seconds[:, 0]


def clock_for(threads: int) -> Clock:
    """Return the clock for runs with so many threads: of computing for one, else of what passes."""
    own = threads == 1 and time.get_clock_info("thread_time").resolution <= _FINE_S
    return time.thread_time if own else time.perf_counter


def time_interleaved(
    runs: Sequence[Callable[[], object]], *, rounds: int = ROUNDS, most_rounds: int | None = None,
    budget_s: float = 0.0, turn_s: float = TURN_S, clock: Clock = time.perf_counter,
) -> Timing:  # fmt: skip
    """Time runs in turn."""
    start = clock()
    turns = [_plan_turn(run, turn_s, clock) for run in runs]
    per_round = max(sum(takes for _, takes in turns), 1e-9)
    fewest = max(min(rounds, int(LONGEST_S / per_round)), min(rounds, _VERY_SLOW_ROUNDS))
    seconds: list[list[float]] = []
    while len(seconds) < fewest or (len(seconds) < (most_rounds or 0) and clock() - start + per_round < budget_s):
        seconds.append([turn() for turn, _ in turns])
    return Timing(np.array(seconds, np.float64))


def _plan_turn(run: Callable[[], object], turn_s: float, clock: Clock) -> tuple[Callable[[], float], float]:
    """Warm a run up; return its turn, which tells the seconds of a run, and about how many seconds a turn takes."""
    once = max(min(_mean(run, 1, clock) for _ in range(_WARM_UP)), 1e-9)
    repeats = min(max(math.ceil(min(turn_s, _SHORTEST_S) / once), 1), _MOST_REPEATS)
    parts = max(int(turn_s / (repeats * once)), 1)
    return lambda: min(_mean(run, repeats, clock) for _ in range(parts)), once * repeats * parts


def _mean(run: Callable[[], object], repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        run()
    return (clock() - start) / repeats


def _spread(values: npt.NDArray[np.float64]) -> float:
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle) if middle > 0 else 0.0


def _interval(values: npt.NDArray[np.float64], quantile: float) -> tuple[float, float]:
    """Return between which values a quantile lies, by order statistics: whatever their distribution is."""
    count, ordered = len(values), np.sort(values)
    chances = [math.comb(count, k) * quantile**k * (1.0 - quantile) ** (count - k) for k in range(count + 1)]
    below = np.cumsum(chances)  # of at most k values below the quantile
    low, high = int(np.sum(below <= _MISSED)), int(np.sum(below < 1.0 - _MISSED))
    return float(ordered[max(low - 1, 0)]), float(ordered[min(high, count - 1)])


#: Further rounds, where they are quick.
_MOST_ROUNDS = 31
_BUDGET_S = 0.2


def latency_of_two(
    before: tuple[ModelLike, GraphView], after: tuple[ModelLike, GraphView], feeds: Callable[[list[InputInfo]], Feeds],
    *, threads: int,
) -> LatencyRecord | None:  # fmt: skip
    """Return the latencies of two models with the same inputs.

    None where a model does not run in its own type, may never end, or does not fit beside the other into memory.
    """
    try:
        sessions = [open_timed(model, view, threads) for model, view in (before, after)]
        runs = runs_of(sessions, feeds(sessions[0].inputs))
        timing = time_interleaved(runs, most_rounds=_MOST_ROUNDS, budget_s=_BUDGET_S, clock=clock_for(threads))
    except (VerificationError, MemoryLimitError):
        return None
    return LatencyRecord(
        timing.median(0), timing.median(1), timing.ratio(), timing.ratio_spread(), timing.rounds, threads
    )


def open_timed(model: ModelLike, view: GraphView, threads: int) -> Session:
    """Return a session that runs a model as users do."""
    session = Session(model, threads=threads, counted=view, keeps_memory=True)
    if session.is_twin:
        raise VerificationError("onnxruntime does not run the model in its own type, so its latency is not known")
    if session.may_be_endless:
        raise VerificationError("the model has a Loop without a trip count: its latency may be anything")
    return session


def runs_of(sessions: Sequence[Session], feeds: Feeds) -> list[Callable[[], object]]:
    """Return runs of models on the same inputs, for :func:`~onnxfold.latency.interleaved.time_interleaved`."""
    return [lambda session=session: session.run(feeds) for session in sessions]  # type: ignore[misc]
