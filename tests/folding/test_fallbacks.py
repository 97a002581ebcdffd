"""The report names what was used for every group, not only what was asked for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from onnxfold.cli import cli
from onnxfold.folding import one_graph
from onnxfold.html_report import render_html
from onnxfold.report import FoldReport
from onnxfold.statistics.observe import Take, observe
from testing import models
from testing.language_models import attention_decoder
from testing.quick import quick_fold
from tests.folding.bodies import choice as bodies


def _used(report: FoldReport) -> set[tuple[str, str]]:
    assert {(g.requested_cluster, g.requested_repair) for g in report.groups} == {(report.cluster, report.repair)}
    return {(g.cluster, g.repair) for g in report.groups}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("elimination", "least-squares")),
        ({"allocation": "uniform"}, ("elimination", "least-squares")),
        ({"method": "fold-ar"}, ("kmeans", "approximate")),
        ({"method": "prune-l1", "repair": "least-squares"}, ("top-l1", "least-squares")),
        ({"cluster": "ward"}, ("ward", "least-squares")),
    ],
)
def test_what_was_asked_for_was_used(options: dict[str, Any], expected: tuple[str, str]) -> None:
    report = quick_fold(models.residual(0), 0.5, verify=False, **options).report
    assert _used(report) - {("", "")} == {expected}
    assert not any("instead of" in note for note in report.fallbacks)


def test_groups_that_keep_their_width_used_nothing() -> None:
    report = quick_fold(models.residual(0), channel_ratio=0.5, keep=["conv_3"], verify=False).report
    assert [(g.cluster, g.repair) for g in report.groups if g.width == g.folded_width] == [("", "")]


def test_bodies_fall_back_to_their_weights(tmp_path: Path) -> None:
    model = bodies(weights_outside=False)
    report = quick_fold(model, channel_ratio=0.75).report
    assert _used(report) == {("kmeans", "approximate")}
    note = (
        "2 of 2 folded groups: cluster kmeans and repair approximate instead of elimination and least-squares, because "
        "their consumers could not be run node by node"
    )
    assert note in report.notes
    assert '"requested_cluster": "elimination"' in report.to_json()
    assert '"cluster": "kmeans"' in report.to_json()
    assert "kmeans, approximate" in render_html(report)
    path = tmp_path / "in.onnx"
    onnx.save(model, str(path))
    arguments = ["fold", str(path), str(tmp_path / "out.onnx"), "--channel-ratio", "0.75", "--verbose", "--force"]
    text = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
    assert f"note: {note}" in " ".join(text.split())
    assert "8 -> 2 (cluster kmeans, repair approximate)" in text


def test_pruning_falls_back_to_no_repair() -> None:
    report = quick_fold(
        bodies(weights_outside=False), channel_ratio=0.75, cluster="top-l1", repair="least-squares"
    ).report
    assert _used(report) == {("top-l1", "none")}


@pytest.mark.parametrize("method", ["wanda-sp", "flap"])
def test_scores_of_what_is_seen_fall_back_to_norms(method: str) -> None:
    report = quick_fold(bodies(weights_outside=False), channel_ratio=0.75, method=method).report
    assert _used(report) == {("top-l2", "none")}


def test_exact_duplicates_are_merged_by_nothing_else() -> None:
    report = quick_fold(bodies(weights_outside=False), channel_ratio=0.5).report
    assert _used(report) == {("duplicates", "none")}
    assert report.fallbacks == []
    assert "nothing else merged" in render_html(report)


def test_a_network_that_cannot_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr("onnxfold.folding.inputs.choose_inputs.Activations", fails)
    report = quick_fold(models.residual(0), 0.5, verify=False).report
    assert _used(report) - {("", "")} == {("kmeans", "approximate")}
    assert any("the network cannot be run on generated inputs" in note for note in report.notes)


def test_consumers_that_were_not_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elimination needs to see them; the repair does not."""

    def blind(view: Any, groups: Any, inputs: Any, take: Take, how: Any, progress: Any) -> Any:
        return observe(view, groups, inputs, lambda group, moments: take(group, []), how, progress)

    monkeypatch.setattr("onnxfold.folding.one_graph.observe", blind)
    report = quick_fold(models.residual(0), 0.5, verify=False).report
    assert _used(report) - {("", "")} == {("kmeans", "least-squares")}


def test_groups_that_are_still_computed_when_the_walk_ends_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(0.05)
        return candidates(*args, **options)

    candidates = one_graph.GroupTasks.candidates
    monkeypatch.setattr(one_graph.GroupTasks, "candidates", slow)
    report = quick_fold(attention_decoder(layers=2), sparsity=0.2, samples=2, verify=False).report
    assert {cluster for cluster, _ in _used(report)} <= {"elimination", ""}
    assert len([group for group in report.groups if group.folded_width < group.width]) > 1
