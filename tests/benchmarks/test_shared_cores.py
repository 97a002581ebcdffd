"""The benchmark on shared cores: neighbours that end, and what its page says."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks import shared_cores
from benchmarks.shared_cores import Row, page, verdicts


def test_neighbours_end_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def record(*args: object, **options: object) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **options))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr(shared_cores.subprocess, "Popen", record)
    monkeypatch.setattr(shared_cores.time, "sleep", lambda _: None)
    monkeypatch.setattr(shared_cores, "usable_cores", lambda: 1)

    def interrupted() -> None:
        with shared_cores._neighbours(2):
            assert [process.poll() for process in started] == [None, None]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [process.poll() for process in started] == [-9, -9]


@pytest.mark.parametrize(("busy", "digest", "met"), [(34.0, "a", True), (36.0, "a", False), (34.0, "b", False)])
def test_what_must_hold(busy: float, digest: str, met: bool) -> None:
    rows = [
        Row("net", 0, 10.0, 18.0, "512 x dead-leaves", "a", 0.9375),
        Row("net", 2, busy, 18.5, "512 x dead-leaves", digest, 0.9375),
    ]
    assert all(ok for _, ok in verdicts(rows)) == met
    text = page(rows, 0.1)
    assert "| net | 0 | 512 x dead-leaves | 10.0 | 1.00 | 18.0 | 93.75% |" in text
    assert ("**missed**" in text) == (not met)
