"""Search for widths that hold a limit of latency: what is predicted from a table is corrected by what is measured.

Latency depends on widths alone, so the search folds by a selection of channels, which takes little time, and measures
that. The fold by the requested method comes last.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxfold.budget.width_request import WidthRequest
from onnxfold.config import FoldConfig
from onnxfold.config.quantities import LatencyLimit, parse_latency
from onnxfold.errors import BudgetError, NothingToFoldError
from onnxfold.folding.choose_inputs import ChosenInputs
from onnxfold.folding.fold_model import FoldedModel, fold_model, losses_of, model_candidates
from onnxfold.folding.fold_task import FoldTask
from onnxfold.folding.measure_latency import MOST_SPREAD, not_measurable
from onnxfold.folding.methods import find_method
from onnxfold.folding.open_model import OpenedModel
from onnxfold.graph.load import load
from onnxfold.graph.save import to_model
from onnxfold.graph.session import Session
from onnxfold.graph.view import GraphView
from onnxfold.inputs.noise import noise_inputs
from onnxfold.latency.interleaved import Timing, clock_for
from onnxfold.latency.table import LatencyTable
from onnxfold.latency.two_models import open_timed, time_sessions
from onnxfold.progress import silent
from onnxfold.report import milliseconds

#: A limit holds if the latency is no more than this part above it.
TOLERANCE = 0.05
#: What the search aims at, and what is close enough below the limit to end it.
_AIM, _CLOSE = 0.98, 0.95
_CORRECTIONS = 6
_ATTEMPTS = 3
#: Rounds of the dense and the folded model in turn, and seconds of a turn.
_ROUNDS, _TURN_S = 15, 1.5e-2

#: Takes a folded graph, returns the times of the input and of the folded model, in this order.
Timer = Callable[[GraphView], Timing]


class RealTimer:
    """Times a folded model beside the input, in onnxruntime.

    Parameters
    ----------
    opened : OpenedModel
        The input.
    threads : int
        Threads inside an operator.
    """

    def __init__(self, opened: OpenedModel, threads: int) -> None:
        self._threads = threads
        self._before: Session = open_timed(opened.source, load(opened.source), threads)
        self._feeds = noise_inputs(self._before.inputs, samples=1, seed=0, view=opened.view)

    def __call__(self, view: GraphView) -> Timing:
        """Return the times of both."""
        after = open_timed(to_model(view), view, self._threads)
        clock = clock_for(self._threads)
        return time_sessions([self._before, after], self._feeds, rounds=_ROUNDS, turn_s=_TURN_S, clock=clock)


@dataclass(frozen=True, eq=False)
class _Try:
    """Widths, and their latency over the limit."""

    config: FoldConfig
    widths: list[int]
    load: float
    timing: Timing


def fold_within_latency(task: FoldTask, request: WidthRequest, data: ChosenInputs) -> FoldedModel:
    """Return a fold whose measured latency holds the limit within 5 %, with its corrected request.

    Parameters
    ----------
    task : FoldTask
        The model, which is the folded one afterwards, and a request with a table of latencies.
    request : WidthRequest
        What this table asks of the widths.
    data : ChosenInputs
        What the model is run on.

    Raises
    ------
    BudgetError
        If the limit cannot be reached; with the closest latency.
    NotMeasurableError
        If latency varies too much.
    """
    config, progress = task.config, task.progress
    prepared = task.prepared(data.inputs)
    candidates = model_candidates(prepared, progress) if request.widths is None else None
    timer: Timer = RealTimer(task.opened, config.threads)
    limit = parse_latency(config.max_latency or "")
    by_selection = find_method("prune-l2")
    quick = replace(
        prepared, inputs=None, graphs=[replace(g, method=by_selection, inputs=None) for g in prepared.graphs]
    )
    losses = losses_of(candidates)
    tries: list[_Try] = []
    trial = config
    for i in range(_CORRECTIONS):
        progress("measure folds", i, _CORRECTIONS)
        try:
            request = replace(task, config=trial).request()
            widths = request.choose(losses)
        except (BudgetError, NothingToFoldError):
            if not tries:
                raise
            break  # corrected beyond what there is
        if widths in [found.widths for found in tries]:
            break
        fold = fold_model(quick.copy(), replace(request, widths=widths), None, trial, silent)
        timing = _steady(timer, fold.view)
        tries.append(_Try(trial, widths, _load(timing, limit), timing))
        if _CLOSE <= tries[-1].load <= 1.0:
            break
        # What the table predicts for these widths becomes what was measured.
        predicted = next(b.cost(widths) / b.limit for b in request.budgets.budgets if b.name == "latency")
        table = LatencyTable.from_dict(trial.latency_table).times(tries[-1].load / predicted / _AIM)
        trial = replace(trial, latency_table=table.to_dict())
    best = min(tries, key=lambda found: (found.load > 1.0 + TOLERANCE, abs(found.load - _AIM)))
    if best.load > 1.0 + TOLERANCE:
        raise BudgetError(
            f"a latency of {config.max_latency} was not reached: the closest is {_shown(best.timing, limit)}; raise "
            "the limit, or run 'onnxfold inspect --latency' to see where the time goes"
        )
    request = replace(task, config=best.config).request()
    folded = fold_model(prepared, request, candidates, best.config, progress)
    spread = best.timing.spread()
    note = (
        f"a latency of {_shown(best.timing, limit)} was measured for the limit of {config.max_latency}: median of "
        f"{best.timing.rounds} rounds in turn with the input, whose spread is {spread:.0%}"
    )
    return replace(folded, notes=(note,))


def _steady(timer: Timer, view: GraphView) -> Timing:
    """Return times between which the input's latency hardly varies.

    Raises
    ------
    NotMeasurableError
        If it varies too much.
    """
    spreads = []
    for _ in range(_ATTEMPTS):
        timing = timer(view)
        if timing.spread() <= MOST_SPREAD:
            return timing
        spreads.append(timing.spread())
    raise not_measurable(min(spreads))


def _load(timing: Timing, limit: LatencyLimit) -> float:
    """Return the measured latency over the limit."""
    return timing.ratio() / limit.ratio if limit.ratio is not None else timing.median(1) / limit.in_seconds(0.0)


def _shown(timing: Timing, limit: LatencyLimit) -> str:
    ms = f"{milliseconds(timing.median(1))} ms"
    return ms if limit.ratio is None else f"{timing.ratio():.3g}x ({ms})"
