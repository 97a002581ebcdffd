"""Architectures are measured in processes with a limit."""

import time

import pytest

from benchmarks.coverage import processes


def test_a_form_that_computes_for_too_long_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        start = time.process_time()
        while time.process_time() - start < 10.0:
            pass

    monkeypatch.setattr(processes, "CPU_LIMIT", 1)
    monkeypatch.setattr(processes, "measure", endless)
    # A network is not built: OpenMP may wait for ever in the child of a process that has computed in threads.
    monkeypatch.setitem(processes.TABLE, "lenet5", (lambda: None, processes.TABLE["lenet5"][1]))
    monkeypatch.setattr(processes, "TIME_LIMIT", 60.0)
    rows = list(processes.run(["lenet5"], ["dynamo", "legacy-bn"]))
    assert {row.form for row in rows} == {"dynamo", "legacy-bn"}
    assert {row.errors["export"] for row in rows} == {"no result within 1 s of processor time"}
