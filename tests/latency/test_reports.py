"""Latency in reports: before and after, and a note where a fold is slower than its input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import onnxfold
from onnxfold.api import FoldResult
from onnxfold.cli import cli
from onnxfold.fidelity import verify as verify_module
from onnxfold.graph.files.load import load
from onnxfold.graph.run.session import InputInfo
from onnxfold.html_report import render_html
from onnxfold.html_report.numbers import size_cells
from onnxfold.inputs.images.synthetic import noise_inputs
from onnxfold.latency import interleaved
from onnxfold.latency.interleaved import latency_of_two
from onnxfold.report import LatencyRecord, milliseconds
from testing import models
from testing.quick import quick_fold
from tests.latency.clocks import Clock

SLOWER = LatencyRecord(1.0e-3, 1.15e-3, 1.15, 0.03, 9, 1)


@pytest.fixture(scope="module")
def folded() -> FoldResult:
    return quick_fold(models.mlp(0), 0.3)


def test_a_fold_is_timed_beside_its_input(folded: FoldResult) -> None:
    latency = folded.report.latency
    assert latency is not None
    assert latency.rounds >= 9
    assert latency.threads == 1
    assert 0.0 < latency.before_s < 1.0
    assert 0.0 < latency.after_s < 1.0
    assert json.loads(folded.report.to_json())["latency"]["before_s"] == latency.before_s


def test_every_form_of_the_report_shows_it(folded: FoldResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LatencyRecord, "is_sure", True)  # however busy the machine is
    assert folded.report.latency is not None
    ms = milliseconds(folded.report.latency.after_s)
    for text in (str(folded.report), render_html(folded.report), folded._repr_html_()):
        assert ms in text
        assert "MACs" in text


def test_a_latency_that_varies_is_no_headline(folded: FoldResult) -> None:
    report = folded.report
    for spread, shown in ((0.1, True), (0.11, False)):
        result = replace(report, latency=replace(SLOWER, spread=spread))
        assert ("latency (ms)" in render_html(result)) == shown
        assert ("latency (ms)" in str(size_cells(report.before, report.after, result.latency))) == shown


def test_nothing_is_timed_without_verification() -> None:
    assert quick_fold(models.mlp(0), 0.3, verify=False).report.latency is None


def test_threads_are_passed_on() -> None:
    latency = quick_fold(models.mlp(0), 0.3, threads=2).report.latency
    assert latency is not None
    assert latency.threads == 2


def test_a_slower_fold_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "latency_of_two", lambda *_, **__: SLOWER)
    notes = quick_fold(models.mlp(0), 0.3).report.notes
    assert [n for n in notes if "slower than its input by 15%" in n]
    within = replace(SLOWER, ratio=1.02)
    monkeypatch.setattr(verify_module, "latency_of_two", lambda *_, **__: within)
    assert not [n for n in quick_fold(models.mlp(0), 0.3).report.notes if "slower" in n]


@pytest.mark.parametrize(("ratio", "spread", "slower"), [(1.1, 0.05, True), (1.04, 0.05, False), (0.9, 0.0, False)])
def test_slower_is_what_exceeds_the_spread(ratio: float, spread: float, slower: bool) -> None:
    assert LatencyRecord(1.0, ratio, ratio, spread, 9, 1).is_slower is slower


def test_the_clock_is_asked_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model, clock = models.mlp(0), Clock()
    view = load(model)

    def sample(infos: list[InputInfo]) -> dict[str, np.ndarray]:
        return noise_inputs(infos, samples=1, seed=0, view=view)

    def tick() -> float:
        clock.now += 1.0
        return clock.now

    monkeypatch.setattr(interleaved, "clock_for", lambda threads: tick)
    found = latency_of_two((model, view), (model, view), sample, threads=1)
    assert found == LatencyRecord(1.0, 1.0, 1.0, 0.0, 9, 1)


def test_compare_shows_costs_and_latency_of_both(folded: FoldResult, tmp_path: Path) -> None:
    onnx.save(models.mlp(0), tmp_path / "a.onnx")
    folded.save(tmp_path / "b.onnx")
    report = onnxfold.compare(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert report.size_a == folded.report.before
    assert report.size_b is not None
    assert report.size_b.parameters == folded.report.after.parameters
    assert report.latency is not None
    done = CliRunner().invoke(cli, ["compare", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), "--threads", "2"])
    assert done.exit_code == 0
    for words in ("parameters", "MACs", "latency", "2 threads"):
        assert words in done.output
