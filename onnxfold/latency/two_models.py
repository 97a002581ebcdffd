"""Latency of a model beside another one's."""

from collections.abc import Callable, Sequence

from onnxfold.errors import MemoryLimitError, VerificationError
from onnxfold.graph.files.load import ModelLike
from onnxfold.graph.run.session import Feeds, InputInfo, Session
from onnxfold.graph.view import GraphView
from onnxfold.latency.interleaved import Clock, Timing, clock_for, time_interleaved
from onnxfold.report import LatencyRecord

#: Further rounds, where they are quick.
_MOST_ROUNDS = 31
_BUDGET_S = 0.2


def latency_of_two(
    before: tuple[ModelLike, GraphView],
    after: tuple[ModelLike, GraphView],
    feeds: Callable[[list[InputInfo]], Feeds],
    *,
    threads: int,
    clock: Clock | None = None,
) -> LatencyRecord | None:
    """Return the latencies of two models with the same inputs.

    None where a model does not run in its own type, may never end, or does not fit beside the other into memory.
    """
    try:
        sessions = [open_timed(model, view, threads) for model, view in (before, after)]
        runs = runs_of(sessions, feeds(sessions[0].inputs))
        timing = time_interleaved(runs, most_rounds=_MOST_ROUNDS, budget_s=_BUDGET_S, clock=clock or clock_for(threads))
    except (VerificationError, MemoryLimitError):
        return None
    return record(timing, threads)


def open_timed(model: ModelLike, view: GraphView, threads: int) -> Session:
    """Return a session that runs a model as users do."""
    session = Session(model, threads=threads, counted=view, as_users_do=True)
    if session.is_twin:
        raise VerificationError("onnxruntime does not run the model in its own type, so its latency is not known")
    if session.may_be_endless:
        raise VerificationError("the model has a Loop without a trip count: its latency may be anything")
    return session


def runs_of(sessions: Sequence[Session], feeds: Feeds) -> list[Callable[[], object]]:
    """Return runs of models on the same inputs, for :func:`~onnxfold.latency.interleaved.time_interleaved`."""
    return [lambda session=session: session.run(feeds) for session in sessions]  # type: ignore[misc]


def record(timing: Timing, threads: int) -> LatencyRecord:
    """Return the times of two models for a report."""
    return LatencyRecord(
        timing.median(0), timing.median(1), timing.ratio(), timing.ratio_spread(), timing.rounds, threads
    )
