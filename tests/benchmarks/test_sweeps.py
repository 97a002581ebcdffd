"""The measurement of sweeps: the simulated cluster waits as long as it is told, and the page says what was counted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.sweeps import grid, scaling
from benchmarks.sweeps.killed import Killed
from benchmarks.sweeps.page import render
from benchmarks.sweeps.scaling import Scaling, simulated


def test_the_sweep_has_96_jobs() -> None:
    jobs = grid.request().jobs()
    assert len(jobs) == len({job.key for job in jobs}) == 2 * 8 * 3 * 2
    assert len({job.inputs_key for job in jobs}) == 4


def test_simulated_workers_do_all_jobs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_MODELS", 2)
    monkeypatch.setattr(scaling, "_SPARSITIES", 2)
    monkeypatch.setattr(scaling, "_SEEDS", 1)
    found = simulated(4, [4.0], [2.0], tmp_path, speed=100.0)
    assert (found.workers, found.jobs) == (4, 12)
    assert found.work_seconds == pytest.approx(12 * 0.04 + 2 * 0.02)
    assert found.seconds > 0.02 + 3 * 0.04  # four workers cannot be faster
    assert 0.0 < found.efficiency < 1.0


def test_what_is_lost_or_twice_is_seen() -> None:
    right = Killed(96, 24, 48, 0, 96, 96, 96, 0, 96, 1.0)
    assert right.is_right
    wrong = [{"rows": 95}, {"settings": 95}, {"done": 95}, {"repeated": 1}, {"left_workers": 1}, {"models": 97}]
    assert not any(Killed(**(asdict(right) | change)).is_right for change in wrong)


def test_the_page_says_what_was_counted() -> None:
    rows = [Scaling(n, 24, 30.0 / n, 27.0, 25.0, 3.0, (1.0, 2.0, 3.0), (0.5, 0.6)) for n in (1, 2)]
    killed = Killed(96, 24, 48, 0, 96, 96, 96, 0, 96, 1.25)
    page = render({"killed": asdict(killed), "scaling": [asdict(r) for r in rows], "simulated": [asdict(rows[0])]})
    assert "| 2 | 24 | 15.0 | 2.00 | 27.0 | 90.0% | 25.0 | 3.0 |" in page
    assert "| 96 | 96 | 96 | 0 | 96 |" in page
    assert "At 24 rows a\nworker was killed, at 48 the client; 0 workers outlived it" in page
