"""Times of runs in turn, with a clock that only runs move."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfold.latency.interleaved import ROUNDS, Timing, time_interleaved
from tests.latency.clocks import Clock


def test_every_round_has_every_run_once_after_a_warm_up() -> None:
    clock = Clock()
    timing = time_interleaved([clock.run("a", lambda _: 1e-3), clock.run("b", lambda _: 2e-3)], clock=clock)
    assert clock.calls == ["a", "a", "b", "b", *["a", "b"] * ROUNDS]
    assert timing.rounds == ROUNDS
    assert (timing.median(0), timing.median(1), timing.ratio()) == pytest.approx((1e-3, 2e-3, 2.0))
    assert (timing.spread(), timing.ratio_spread()) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_a_machine_that_becomes_slower_does_not_change_the_ratio() -> None:
    """Both take five times as long from the fourth round on."""
    clock = Clock()

    def seconds(base: float) -> object:
        return lambda call: base * (1.0 if call < 5 else 5.0)

    timing = time_interleaved([clock.run("a", seconds(1e-3)), clock.run("b", seconds(0.6e-3))], clock=clock)  # type: ignore[arg-type]
    assert timing.ratio() == pytest.approx(0.6)
    assert timing.ratio_spread() == pytest.approx(0.0, abs=1e-9)
    assert timing.spread() > 0.5


def test_one_disturbed_round_of_nine_changes_nothing() -> None:
    clock = Clock()
    timing = time_interleaved(
        [clock.run("a", lambda call: 1.0 if call == 6 else 1e-3), clock.run("b", lambda _: 0.5e-3)], clock=clock
    )
    assert timing.ratio() == pytest.approx(0.5)
    assert timing.spread() == pytest.approx(0.0, abs=1e-9)


def test_the_spread_is_the_distance_of_the_quartiles() -> None:
    timing = Timing(np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 4.0], [1.0, 5.0], [1.0, 6.0]]))
    assert timing.ratio() == 4.0
    assert timing.ratio_spread() == pytest.approx((5.0 - 3.0) / 4.0)


def test_short_runs_are_repeated_within_a_turn() -> None:
    clock = Clock()
    timing = time_interleaved([clock.run("a", lambda _: 1e-5)], turn_s=1e-4, clock=clock)
    assert len(clock.calls) == pytest.approx(2 + 10 * ROUNDS, abs=ROUNDS)
    assert timing.median() == pytest.approx(1e-5)


def test_what_disturbs_a_part_of_every_turn_changes_nothing() -> None:
    """Two of three repeats take twice as long; the means of turns would, too."""
    clock = Clock()
    timing = time_interleaved([clock.run("a", lambda call: 1e-3 if call % 3 else 2e-3)], turn_s=6e-3, clock=clock)
    assert timing.median() == pytest.approx(1e-3)
    assert timing.spread() == pytest.approx(0.0, abs=1e-9)


def test_slow_runs_get_fewer_rounds() -> None:
    clock = Clock()
    assert time_interleaved([clock.run("a", lambda _: 5.0), clock.run("b", lambda _: 1.0)], clock=clock).rounds == 5
    assert time_interleaved([clock.run("a", lambda _: 500.0)], clock=clock).rounds == 3


def test_further_rounds_end_with_the_budget() -> None:
    clock = Clock()
    quick = time_interleaved([clock.run("a", lambda _: 1e-3)], most_rounds=31, budget_s=0.2, clock=clock)
    slower = time_interleaved([clock.run("a", lambda _: 1e-2)], most_rounds=31, budget_s=0.2, clock=clock)
    assert (quick.rounds, slower.rounds) == (31, pytest.approx(17, abs=1))
    assert time_interleaved([clock.run("a", lambda _: 0.1)], most_rounds=31, budget_s=0.2, clock=clock).rounds == ROUNDS


def test_intervals_are_order_statistics() -> None:
    """Of nine values, the second and the eighth enclose the median in 96 % of the cases."""
    timing = Timing(np.stack([np.ones(9), np.arange(1.0, 10.0)], axis=1))
    assert timing.ratio_interval() == (2.0, 8.0)
    assert timing.quiet_seconds(1) == 3.0
    assert timing.join(timing).rounds == 18
