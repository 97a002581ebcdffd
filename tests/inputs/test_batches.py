"""Batches of an inversion that are optimised at a time: the same images, one way to fail, one thread that tells."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from onnxfold.errors import ConfigError, UnsupportedModelError  # noqa: E402
from onnxfold.graph.files.load import load  # noqa: E402
from onnxfold.inputs.inversion import invert as module  # noqa: E402
from onnxfold.inputs.inversion.deep_inversion import (  # noqa: E402
    Inversion,
    InversionSettings,
    Schedule,
    deep_inversion,
)
from onnxfold.inputs.inversion.invert import Clock, run_batches  # noqa: E402
from testing.inversion import ENDLESS, of_steps  # noqa: E402
from testing.models import ALL_MODELS, random_input  # noqa: E402

SETTINGS = replace(ENDLESS, batch=6)


def _inverted(threads: int, settings: InversionSettings = SETTINGS, **options: object) -> Inversion:
    model = ALL_MODELS["residual"](0)
    start = random_input(model, 0, 24)
    return deep_inversion(load(model), start, threads=threads, settings=of_steps(3, settings), **options)  # type: ignore[arg-type]


def test_batches_beside_each_other_give_the_same_images(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    run = run_batches
    monkeypatch.setattr(
        "onnxfold.inputs.inversion.invert.run_batches", lambda *args: (used.append(args[2]), run(*args))[1]
    )
    found = [_inverted(threads) for threads in (1, 2, 3)]
    assert used == [1, 2, 1]  # four batches do not go into three threads evenly
    assert len({f.inputs[0]["x"].tobytes() for f in found}) == 1
    assert len({repr((f.steps_per_batch, f.initial, f.final)) for f in found}) == 1
    assert found[0].steps_per_batch == (3, 3, 3, 3)


def test_what_does_not_fit_into_memory_twice_is_done_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    run = run_batches
    monkeypatch.setattr(
        "onnxfold.inputs.inversion.invert.run_batches", lambda *args: (used.append(args[2]), run(*args))[1]
    )
    _inverted(2, replace(ENDLESS, memory_bytes=1 << 17))
    assert used == [1]


def test_one_thread_tells_about_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.001)
    told: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(_: str, done: int = 0, steps: int = 0) -> None:
        told.append((done, steps))
        threads.add(threading.get_ident())

    _inverted(2, progress=progress)
    assert threads == {threading.get_ident()}
    assert all(steps == 12 for _, steps in told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_that_fails_ends_the_others(workers: int) -> None:
    clock = Clock(InversionSettings(), 10**9, 4, workers)

    def work(i: int) -> int:
        clock.start(i)
        if i == 1 or workers == 1:
            raise UnsupportedModelError("no gradient")
        while True:
            clock.check()

    with pytest.raises(UnsupportedModelError, match="no gradient"):
        run_batches(work, 4, workers, clock, lambda *_: None)


def test_progress_that_raises_ends_all_batches() -> None:
    clock = Clock(InversionSettings(), 10**9, 2, 2)

    def work(i: int) -> int:
        clock.start(i)
        while True:
            clock.check()

    def refuse(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batches(work, 2, 2, clock, refuse)


def test_time_is_shared_by_rounds() -> None:
    clock = Clock(InversionSettings(seconds=100.0), 5, 4, 2)
    shares = [clock.start(i).seconds for i in range(4)]  # all at the beginning: nothing is used up
    assert shares == pytest.approx([50.0, 50.0, 100.0, 100.0], abs=0.5)


def test_steps_of_another_number_of_batches_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 numbers of inversion steps are given for 4 batches"):
        Clock(InversionSettings(exact_steps=(1, 2)), 5, 4)


@pytest.mark.parametrize(("seconds", "steps"), [(1e9, 40), (40.0, 40), (20.0, 20), (0.0, 2), (-5.0, 2)])
def test_the_clock_ends_a_batch_in_time(seconds: float, steps: int) -> None:
    """The learning rate falls over the last quarter, however many steps there are."""
    now = 0.0
    schedule = Schedule(SETTINGS, 40, clock=lambda: now)
    schedule.begin(seconds)
    rates = []
    while schedule.running:
        rates.append(schedule.rate)
        now += 1.0
        schedule.note(1.0 / (1 + schedule.done))
    assert len(rates) == steps
    assert schedule.cut == (steps < 40)
    settling = -(-steps // 4)
    assert rates == [1.0] * (steps - settling) + [(settling - i) / settling for i in range(settling)]
    again = Schedule(SETTINGS, 40, exact=steps, clock=lambda: 1e9)
    repeated = []
    while again.running:
        repeated.append(again.rate)
        again.note(1.0)
    assert repeated == rates
