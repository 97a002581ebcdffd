"""The fuzz benchmark's exit code, and which BLAS kernels it runs under."""

from __future__ import annotations

import sys

import pytest

from benchmarks import fuzz, kernels
from testing.random_graphs.check import Outcome


class _Pool:
    """Runs in this process."""

    def __init__(self, workers: int) -> None:
        pass

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def map(self, function, seeds, chunksize: int):
        return [function(seed) for seed in seeds]


@pytest.mark.parametrize(("failures", "code"), [([], 0), (["lossless: differs"], 1)])
def test_any_failure_ends_in_exit_code_1(failures, code, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--graphs", "2"])
    monkeypatch.setattr(fuzz.multiprocessing, "get_context", lambda _: type("C", (), {"Pool": _Pool}))
    monkeypatch.setattr(fuzz, "probe", lambda: kernels.Probe("Haswell", "1"))
    monkeypatch.setattr(fuzz, "check", lambda seed: Outcome(seed, list(failures) if seed else [], nodes=1))
    assert fuzz.main() == code
    printed = capsys.readouterr().out
    assert "| BLAS kernel | Haswell, 1 threads |" in printed
    assert ("seed 1: lossless: differs" in printed) == bool(failures)


def test_kernels_that_were_seen_or_die_are_skipped(monkeypatch) -> None:
    answers = {"A": "Haswell", "B": "Haswell", "C": "", "D": "SkylakeX"}
    monkeypatch.setattr(kernels, "probe", lambda environment: kernels.Probe(answers[environment["OPENBLAS_CORETYPE"]]))
    skipped = {coretype: reason for coretype, _, reason in kernels.distinct_kernels(answers)}
    assert skipped == {"A": "", "B": "the same kernel as A", "C": "dies on this machine", "D": ""}


def test_a_child_that_dies_is_told_apart(monkeypatch) -> None:
    assert kernels.probe().architecture
    monkeypatch.setattr(kernels, "_PROBE", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert str(kernels.probe()) == "dies on this machine"


def test_as_many_kernels_as_asked_for(monkeypatch, capsys) -> None:
    answers = {"A": "", "B": "Haswell", "C": "SkylakeX", "D": "Nehalem"}
    monkeypatch.setattr(kernels, "probe", lambda environment: kernels.Probe(answers[environment["OPENBLAS_CORETYPE"]]))
    ran = []

    def run(command, env, check):
        ran.append((env["OPENBLAS_CORETYPE"], env["OMP_NUM_THREADS"]))
        return type("Done", (), {"returncode": len(ran) == 2})

    monkeypatch.setattr(fuzz.subprocess, "run", run)
    assert fuzz.under_kernels(list(answers), 2, [1, 2], []) == 1
    assert ran == [("B", "1"), ("B", "2"), ("C", "1"), ("C", "2")]
    assert "A: skipped, dies on this machine" in capsys.readouterr().out
