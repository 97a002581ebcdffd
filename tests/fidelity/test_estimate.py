"""The estimated agreement on data, and the warning before a useless model is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import onnxfold
from onnxfold.cli import cli
from onnxfold.errors import ModelSaveError
from onnxfold.fidelity import estimate as estimate_module
from onnxfold.fidelity.estimate import DATA, GENERATED, REGRESSIONS, Regression, estimate, features, logit
from onnxfold.folding.fold_result import FoldResult
from onnxfold.graph.session import Session
from onnxfold.html_report import render_html
from onnxfold.report import AgreementEstimate, FoldReport, Signs
from testing import models
from testing.quick import quick_fold
from tests.html_report.reports import rich

SIGNS = Signs("dead-leaves", 0.9, 512, 0.85, 256, 0.3, 0.1)
WARNING = "estimated agreement below 20 %: ask for less, or give unlabeled samples with --calibration"


@pytest.fixture(scope="module")
def folded() -> FoldResult:
    return quick_fold(models.residual(0), 0.4)


def _pessimistic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every estimate nearly zero."""
    none = {
        origin: Regression((-9.0,) + (0.0,) * (len(r.coefficients) - 1), (-1, 1)) for origin, r in REGRESSIONS.items()
    }
    monkeypatch.setattr(estimate_module, "REGRESSIONS", none)


def test_an_estimate_is_the_logistic_function_of_a_sum() -> None:
    found, (low, high) = Regression((1.0, -2.0), (-1.0, 0.5)).at((1.0, 0.5))
    assert found == 0.5
    assert low == pytest.approx(1 / (1 + math.e))
    assert high == pytest.approx(1 / (1 + math.exp(-0.5)))


def test_logits_of_all_and_of_no_samples_are_finite() -> None:
    assert logit(1.0, 10) == -logit(0.0, 10) == pytest.approx(math.log(10.5 / 0.5))
    assert logit(0.5, 7) == 0.0


@pytest.mark.parametrize("inputs", ["deep-inversion", "dead-leaves", "data"])
def test_more_agreement_and_less_error_give_a_higher_estimate(inputs: str) -> None:
    signs = replace(SIGNS, inputs=inputs)
    middle = estimate("y", signs)
    low, high = middle.interval
    assert 0 < low < middle.agreement < high < 1
    refitted = estimate("y", replace(signs, fitted_agreement=0.99)).agreement
    if inputs == "dead-leaves":  # held-out ones are of the same kind
        assert refitted == middle.agreement
    else:
        assert refitted > middle.agreement
    better = replace(signs, held_out_agreement=0.95, held_out_error=0.1)
    if inputs == "data":  # generated inputs are foreign to such a fold
        assert estimate("y", better).agreement == middle.agreement
    else:
        assert estimate("y", better).agreement > middle.agreement


def test_errors_without_bounds_are_bounded() -> None:
    for error in (0.0, math.inf):
        assert all(map(math.isfinite, features(replace(SIGNS, held_out_error=error))))


def test_the_signs_are_what_was_measured(folded: FoldResult) -> None:
    report = folded.report
    assert report.estimate is not None
    assert report.fidelity is not None
    assert report.diagnostics is not None
    signs, held_out = report.estimate.signs, report.fidelity.outputs[0]
    # Held-out inputs are of the same kind, so that those of the fit were not run again.
    assert (signs.inputs, signs.fitted_agreement, signs.fitted_samples) == ("dead-leaves", None, 0)
    assert (signs.held_out_agreement, signs.held_out_error) == (held_out.top1_agreement, held_out.relative_error)
    assert signs.curve_error == pytest.approx(sum(c.error for c in report.diagnostics.error_curves))


def test_the_agreement_on_the_inputs_of_the_fit_is_theirs() -> None:
    model, x = models.residual(0), np.random.default_rng(0).normal(size=(40, 3, 8, 8)).astype(np.float32)
    result = quick_fold(model, 0.4, calibration={model.graph.input[0].name: x})
    assert result.report.estimate is not None
    signs = result.report.estimate.signs
    first, second = (Session(m).run({model.graph.input[0].name: x})[0].argmax(axis=1) for m in (model, result.model))
    assert (signs.inputs, signs.fitted_samples) == ("data", 40)
    assert signs.fitted_agreement == (first == second).mean()


def test_the_estimate_stands_in_every_form_of_the_report(folded: FoldResult) -> None:
    report = folded.report
    words = str(report.estimate)
    assert "estimated agreement on data" in words
    assert "80 % interval" in words
    assert words in str(report)
    assert words.capitalize() in render_html(report)
    assert report.estimate is not None
    told = json.loads(report.to_json())["estimate"]
    assert told["agreement"] == pytest.approx(report.estimate.agreement)
    assert told["signs"]["inputs"] == "dead-leaves"


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (models.autoencoder, {}),  # no classes
        (models.mlp, {}),  # no images
        (models.residual, {"inputs": "noise"}),
        (models.residual, {"method": "prune-l2", "allocation": "uniform"}),  # not run
    ],
)
def test_no_estimate_where_it_was_not_calibrated(
    make: Callable[[int], onnx.ModelProto], options: dict[str, Any]
) -> None:
    assert quick_fold(make(0), 0.3, **options).report.estimate is None


def test_no_estimate_without_verification() -> None:
    report = quick_fold(models.residual(0), 0.3, verify=False).report
    assert report.estimate is None
    assert report.warning == ""
    assert "stimated agreement" not in render_html(report)


def test_a_useless_model_is_warned_of_once_in_every_report() -> None:
    useless = AgreementEstimate("y", 0.19, (0.05, 0.4), SIGNS)
    report: FoldReport = replace(rich(), estimate=useless)
    assert report.warning == WARNING
    assert str(report).count(WARNING) == render_html(report).count(WARNING) == 1
    assert json.loads(report.to_json())["warning"] == WARNING
    assert replace(report, estimate=replace(useless, agreement=0.2)).warning == ""


def test_who_gave_samples_is_not_told_to_give_some() -> None:
    report = replace(rich(), estimate=AgreementEstimate("y", 0.1, (0.0, 0.3), SIGNS))
    assert report.inputs is not None
    assert replace(report, inputs=replace(report.inputs, kind="data")).warning == (
        "estimated agreement below 20 %: ask for less"
    )


def test_without_an_estimate_agreement_on_generated_inputs_decides() -> None:
    ruined = quick_fold(models.mlp(0), 0.9, method="prune-l2", repair="none").report
    kept = quick_fold(models.mlp(0), 0.1).report
    for report, useless in ((ruined, True), (kept, False)):
        assert report.fidelity is not None
        agreement = report.fidelity.outputs[0].top1_agreement
        assert agreement is not None
        assert (agreement < 0.2) is useless
        assert report.warning.startswith("agreement on generated inputs below 20 %") is useless
        assert bool(report.warning) is useless


def test_the_warning_comes_before_anything_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pessimistic(monkeypatch)
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(models.residual(0), str(source))

    def fail(self: FoldResult, path: Path) -> None:
        raise ModelSaveError("the disk is full")

    monkeypatch.setattr(onnxfold.FoldResult, "save", fail)
    arguments = [str(source), str(out), "--sparsity", "0.4", "--inputs", "dead-leaves", "--samples", "16", "--no-cache"]
    done = CliRunner().invoke(cli, ["fold", *arguments])
    assert not out.exists()
    assert done.exit_code != 0
    assert f"warning: {WARNING}" in done.stderr.splitlines()
    monkeypatch.undo()
    done = CliRunner().invoke(cli, ["fold", *arguments])
    assert done.exit_code == 0, done.output
    assert "warning:" not in done.output
    assert "estimated agreement on data" in done.stdout


def test_there_is_a_regression_for_each_origin() -> None:
    for inputs, origin in (("deep-inversion", GENERATED), ("dead-leaves", GENERATED), ("data", DATA)):
        assert len(features(replace(SIGNS, inputs=inputs))) == len(REGRESSIONS[origin].coefficients)
