"""Search for widths that hold a limit of latency: what is predicted from a table is corrected by what is measured.

Latency depends on widths alone, so the search folds by a selection of channels, which takes little time, and measures
that. The fold by the requested method comes last.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.config import FoldConfig
from onnxfold.config.quantities import LatencyLimit, parse_latency
from onnxfold.errors import BudgetError, NothingToFoldError, NotMeasurableError
from onnxfold.folding.fold_model import Decision, FoldedModel, fold_model
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.inputs.choose_inputs import ChosenInputs
from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.files.load import load
from onnxfold.graph.files.save import to_model
from onnxfold.graph.view import GraphView
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.latency.interleaved import Timing, clock_for, open_timed, runs_of, time_interleaved
from onnxfold.latency.table import LatencyTable
from onnxfold.progress import silent
from onnxfold.report import milliseconds

#: What the search aims at, at least where times vary much, and how far below is close enough to end it.
_AIM, _LOWEST_AIM, _CLOSE = 0.98, 0.9, 0.03
#: Folds that are measured, and widths that are chosen: some come up twice.
_MEASURED, _CHOSEN = 8, 24
#: Corrections of a table that are closer to each other are the same.
_RESOLUTION = 1.005
#: Measurements of a fold, until they decide whether it holds the limit.
_ATTEMPTS = 4
#: Rounds of the dense and the folded model in turn, and seconds of a turn.
_ROUNDS, _TURN_S = 21, 1.5e-2

#: Takes a folded graph, returns the times of the input and of the folded model, in this order.
Timer = Callable[[GraphView], Timing]


def real_timer(opened: OpenedModel, threads: int) -> Timer:
    """Return a function that times a folded model beside the input, in onnxruntime."""
    before = open_timed(opened.source, load(opened.source), threads)
    feeds = noise_inputs(before.inputs, samples=1, seed=0, view=opened.view)

    def time(view: GraphView) -> Timing:
        runs = runs_of([before, open_timed(to_model(view), view, threads)], feeds)
        return time_interleaved(runs, rounds=_ROUNDS, turn_s=_TURN_S, clock=clock_for(threads))

    return time


@dataclass(frozen=True, eq=False)
class _Try:
    """Widths, and their latency over the limit: the estimate, and the interval that it lies in."""

    config: FoldConfig
    widths: list[int]
    load: float
    low: float
    high: float
    timing: Timing

    def rank(self, most: float) -> int:
        """Return 0 if the latency is at most this part of the limit, 2 if it is not, 1 if that is not known."""
        return 0 if self.high <= most else 1 if self.low <= most else 2


def next_correction(fast: float, slow: float, suggested: float, load: float) -> float | None:
    """Return the next correction of the table, None if there is nothing between those that are known.

    Known are the smallest by which a fold was fast enough, and the largest by which it was not.
    """
    if slow * _RESOLUTION < suggested < fast / _RESOLUTION:
        return suggested
    if slow == 0.0:  # whatever is predicted, there is room
        return fast * max(load, 0.5) if load < _LOWEST_AIM else None
    if fast == math.inf:
        return slow * max(load, 1.02)
    return math.sqrt(slow * fast) if fast > slow * _RESOLUTION**2 else None


def fold_within_latency(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Return a fold whose measured latency holds the limit within the tolerance, with its corrected request."""
    config, progress = task.config, task.progress
    prepared = task.prepared(data.inputs, chooses=request.widths is None)
    timer = real_timer(task.opened, config.threads)
    limit = parse_latency(config.max_latency or "")
    selection = task.by_selection()
    most = 1.0 + config.tolerance / 100.0
    tries: list[_Try] = []
    table, correction, fast, slow = LatencyTable.from_dict(config.latency_table), 1.0, math.inf, 0.0
    for _ in range(_CHOSEN):
        progress("measure folds", len(tries), _MEASURED)
        corrected = replace(table, correction=table.correction * correction)
        trial = replace(config, latency_table=corrected.to_dict())
        try:
            request = replace(task, config=trial).request()
            widths = request.choose(prepared.losses)
        except (BudgetError, NothingToFoldError):
            if not tries:
                raise
            break  # corrected beyond what there is
        tried = next((known for known in tries if known.widths == widths), None)
        if tried is None:
            if len(tries) == _MEASURED:
                break
            fold = fold_model(selection.trial(), replace(request, widths=widths), trial, silent)
            tried = _measure_fold(timer, fold.view, trial, widths, limit)
            tries.append(tried)
        # Below the limit by what the measurement may be off.
        aim = max(min(_AIM, _AIM * most * tried.load / tried.high), _LOWEST_AIM)
        if aim - _CLOSE <= tried.load <= 1.0 and tried.rank(most) == 0:
            break
        if tried.load <= aim:
            fast = min(fast, correction)
        else:
            slow = max(slow, correction)
        # What the table predicts for these widths becomes what was measured.
        predicted = next(b.cost(widths) / b.limit for b in request.budgets.budgets if b.name == "latency")
        following = next_correction(fast, slow, correction * tried.load / predicted / aim, tried.load)
        if following is None:
            break
        correction = following
    best = min(tries, key=lambda candidate: (candidate.rank(most), abs(candidate.load - _AIM)))
    if best.rank(most) == 1:
        shown = " to ".join(_amount(load, limit) for load in (best.low, best.high))
        raise NotMeasurableError(
            f"not measurable on this machine now: the closest fold takes {shown}, which does not decide whether it "
            f"holds {config.max_latency} within {config.tolerance:g} %; end what else runs, raise --tolerance, or give "
            "the report of an earlier fold as --latency-table"
        )
    if best.rank(most) == 2:
        raise BudgetError(
            f"a latency of {config.max_latency} was not reached: the closest is {_load_text(best, limit)}; raise "
            "the limit, or run 'onnxfold inspect --latency' to see where the time goes"
        )
    request = replace(task, config=best.config).request()
    note = (
        f"a latency of {_load_text(best, limit)} was measured for the limit of {config.max_latency}, between "
        f"{' and '.join(_amount(load, limit) for load in (best.low, best.high))} with a confidence of 95 %: "
        f"{best.timing.rounds} rounds in turn with the input"
    )
    return replace(fold_model(prepared, request, best.config, progress), decision=Decision((note,)))


def _measure_fold(timer: Timer, view: GraphView, config: FoldConfig, widths: list[int], limit: LatencyLimit) -> _Try:
    """Return how long a fold takes, by as many rounds as decide whether it holds the limit, if that is possible."""
    timing = timer(view)
    for attempt in range(_ATTEMPTS):
        timing = timing.join(timer(view)) if attempt else timing
        if limit.ratio is not None:
            loads = [value / limit.ratio for value in (timing.ratio(), *timing.ratio_interval())]
        else:
            loads = [value / limit.in_seconds(0.0) for value in (timing.quiet_seconds(1), *timing.quiet_interval(1))]
        tried = _Try(config, widths, loads[0], loads[1], loads[2], timing)
        if tried.rank(1.0 + config.tolerance / 100.0) != 1:
            break
    return tried


def _amount(load: float, limit: LatencyLimit) -> str:
    if limit.ratio is not None:
        return f"{load * limit.ratio:.3g}x"
    return f"{milliseconds(load * limit.in_seconds(0.0))} ms"


def _load_text(tried: _Try, limit: LatencyLimit) -> str:
    shown = _amount(tried.load, limit)
    return shown if limit.ratio is None else f"{shown} ({milliseconds(tried.timing.quiet_seconds(1))} ms)"
