"""The estimated agreement on data, and the warning before a useless model is written."""

from __future__ import annotations

import json
import math
from collections import Counter
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
from onnxfold.fidelity.answer_measures import Classes, expected_agreement, variety
from onnxfold.fidelity.estimate import Regression, doubt_of, estimate, logit, share_interval, signs_of
from onnxfold.folding.fold_result import FoldResult
from onnxfold.graph.run.session import Session
from onnxfold.html_report import render_html
from onnxfold.report import FoldReport
from onnxfold.report.closeness import AgreementEstimate, Signs
from testing import models
from testing.quick import quick_fold
from tests.html_report.reports import rich

SIGNS = Signs("dead-leaves", 0.9, 256, 0.3, 0.1, 0.5)
WARNING = "estimated agreement below 20 %: ask for less, or give unlabeled samples with --calibration"


@pytest.fixture(scope="module")
def folded() -> FoldResult:
    return quick_fold(models.residual(3), 0.05)


def _pessimistic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every estimate nearly zero, and no sign speak against it."""
    monkeypatch.setattr(estimate_module, "REGRESSION", Regression((-9.0, 0.0), (-1, 1)))
    monkeypatch.setattr(estimate_module, "doubt_of", lambda signs: "")


def test_an_estimate_is_the_logistic_function_of_a_sum() -> None:
    """And of a share that many samples show, networks alone decide the width, and a point."""
    many, few = (replace(SIGNS, held_out_agreement=0.5, held_out_samples=count) for count in (10**9, 20))
    found, (low, high) = Regression((1.0, 2.0), (-1.0, 0.5)).at(many)
    assert found == pytest.approx(1 / (1 + math.exp(-1)))
    noise = math.hypot(0.3, 0.01 / (found * (1 - found)))
    assert low == pytest.approx(1 / (1 + math.exp(noise - 1)))
    assert high == pytest.approx(1 / (1 + math.exp(-0.5 * noise - 1)))
    wider = Regression((1.0, 2.0), (-1.0, 0.5)).at(few)[1]
    assert wider[1] - wider[0] > 2 * (high - low)


def test_no_estimate_is_surer_than_a_point() -> None:
    sure = replace(SIGNS, held_out_agreement=0.98, held_out_samples=10**9)
    found, (low, high) = Regression((0.0, 1.0), (-1.0, 1.0)).at(sure)
    assert found == pytest.approx(0.98)
    assert low < 0.97
    assert high < 0.99
    for kept, bounds in ((1.0, (0.99, 1.0)), (0.0, (0.0, 0.01))):  # of all answers and of none, it says nearly that
        low, high = Regression((0.0, 1.0), (-1.0, 1.0)).at(replace(sure, held_out_agreement=kept))[1]
        assert bounds[0] <= low <= high <= bounds[1]


def test_logits_of_all_and_of_no_samples_are_finite() -> None:
    assert logit(1.0, 10) == -logit(0.0, 10) == pytest.approx(math.log(10.5 / 0.5))
    assert logit(0.5, 7) == 0.0


@pytest.mark.parametrize("inputs", ["deep-inversion", "dead-leaves", "data"])
def test_more_agreement_gives_a_higher_estimate(inputs: str) -> None:
    signs = replace(SIGNS, inputs=inputs)
    middle = estimate("y", signs)
    low, high = middle.interval
    assert 0 < low < middle.agreement < high < 1
    assert estimate("y", replace(signs, held_out_agreement=0.95)).agreement > middle.agreement


def test_on_samples_the_estimate_is_what_they_show() -> None:
    middle, (low, high) = share_interval(0.8, 50)
    assert middle == pytest.approx(0.8, abs=0.01)
    assert 0.7 < low < 0.8 < high < 0.88
    assert share_interval(0.8, 500)[1][0] > low


def test_answers_that_are_all_alike_have_no_variety() -> None:
    assert variety(Counter({3: 200}), 10) == pytest.approx(1 / (200 * 10 / 210))
    assert variety(Counter(dict.fromkeys(range(10), 20)), 10) == pytest.approx(1.05)
    assert variety(Counter(dict.fromkeys(range(200), 1)), 1000) == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variety": 0.1}, "of the variety"),
        ({"held_out_agreement": 0.6}, "only 60% of the answers are kept"),
        ({"inputs": "data", "variety": 0.6}, "answers on given samples"),
        ({"inputs": "data", "held_out_samples": 0}, "too few to hold some out"),
        ({"inputs": "data", "held_out_samples": 8, "variety": 1.0}, "only 8 samples"),
    ],
)
def test_signs_that_speak_against_an_estimate(changes: dict[str, Any], words: str) -> None:
    assert doubt_of(SIGNS) == ""
    assert words in doubt_of(replace(SIGNS, **changes))


def test_one_class_in_all_answers_tells_nothing_of_others() -> None:
    """Of five classes, one alone has a fifth of the variety, and 100 % of such answers are kept by most folds."""
    assert "one class in 100% of its answers" in doubt_of(replace(SIGNS, most_frequent=1.0))
    nearly = replace(SIGNS, most_frequent=0.93, held_out_samples=136)  # of nine others five were lost
    assert "one class in 93% of its answers" in doubt_of(nearly)
    assert doubt_of(replace(nearly, held_out_samples=2000)) == ""
    assert doubt_of(replace(SIGNS, inputs="data", variety=1.0, most_frequent=1.0)) == ""


def test_agreement_on_samples_is_measured_whatever_it_is() -> None:
    assert doubt_of(replace(SIGNS, inputs="data", held_out_agreement=0.3, variety=1.0)) == ""


def test_the_signs_are_what_was_measured(folded: FoldResult) -> None:
    report = folded.report
    assert report.estimate is not None
    assert report.fidelity is not None
    signs, held_out = report.estimate.signs, report.fidelity.outputs[0]
    assert signs.inputs == "dead-leaves"
    assert (signs.held_out_agreement, signs.held_out_error) == (held_out.top1_agreement, held_out.relative_error)
    assert signs.variety == held_out.top1_variety
    assert signs.curve_error == pytest.approx(sum(c.error for c in report.diagnostics.error_curves))


@pytest.mark.parametrize(("count", "held_out"), [(40, 0), (64, 12), (100, 20), (400, 80), (1300, 256)])
def test_a_fifth_of_many_samples_is_held_out(count: int, held_out: int) -> None:
    model, x = models.residual(0), np.random.default_rng(0).normal(size=(count, 3, 8, 8)).astype(np.float32)
    report = quick_fold(model, 0.4, calibration={model.graph.input[0].name: x}).report
    assert report.inputs is not None
    assert report.inputs.samples == count - held_out
    if not held_out:
        assert report.fidelity_on_samples is None
        assert report.estimate_line.startswith("estimated agreement on data: not known: the samples are too few")
    else:
        assert report.fidelity_on_samples is not None
        assert report.fidelity_on_samples.samples == held_out


@pytest.mark.parametrize("batch", [1, 4])
def test_whole_batches_are_held_out_of_a_model_with_a_fixed_batch(batch: int) -> None:
    model, x = models.residual(0), np.random.default_rng(0).normal(size=(80, 3, 8, 8)).astype(np.float32)
    for info in (*model.graph.input, *model.graph.output):
        info.type.tensor_type.shape.dim[0].dim_value = batch
    report = quick_fold(model, 0.4, calibration={model.graph.input[0].name: x}).report
    assert report.fidelity_on_samples is not None
    assert report.fidelity_on_samples.samples == 16
    assert report.fidelity_on_samples.outputs[0].top1_samples == 16


def test_samples_that_are_surer_than_others_promise_less() -> None:
    margins = np.linspace(1.0, 2.0, 40)
    kept = margins > 1.2
    same = expected_agreement(kept, margins, np.repeat(margins, 4))
    assert same == pytest.approx(kept.mean())
    assert expected_agreement(kept, margins, np.linspace(0.0, 1.0, 160)) < same - 0.1
    assert expected_agreement(kept, margins, np.linspace(2.0, 3.0, 160)) > same + 0.05
    assert expected_agreement(kept, np.ones(40), np.ones(160)) == kept.mean()
    assert expected_agreement(np.ones(40, bool), margins, np.linspace(0.0, 1.0, 160)) == 1.0


def test_answers_that_name_one_class_or_none_expect_nothing() -> None:
    for scores in (np.ones((4, 1)), np.full((4, 3), np.nan)):
        measure = Classes()
        measure.add(scores, scores)
        measure.see(scores)
        assert "expected_agreement" not in measure.values()


@pytest.mark.parametrize("slope", [0.0, 1.0, 4.0])
def test_the_expected_agreement_is_nearer_to_the_truth_than_the_share(slope: float) -> None:
    """Where sure answers are kept more often; where they are not, it is about as near."""
    random, errors = np.random.default_rng(0), []
    for _ in range(200):
        margins = random.exponential(size=250)
        kept = random.uniform(size=250) < 1 / (1 + np.exp(-1.0 - slope * np.log(margins)))
        share, truth = kept[:50].mean(), kept.mean()
        errors.append((share - truth, expected_agreement(kept[:50], margins[:50], margins[50:]) - truth))
    of_share, of_expected = np.sqrt(np.square(errors).mean(axis=0))
    assert of_expected < of_share * (1.3 if not slope else 0.95 if slope == 1.0 else 0.8)


def test_the_estimate_on_samples_is_the_agreement_expected_of_all() -> None:
    model = models.mlp(0)
    info = model.graph.input[0]
    width = info.type.tensor_type.shape.dim[1].dim_value
    x = np.random.default_rng(0).normal(size=(100, width)).astype(np.float32)
    result = quick_fold(model, 0.6, calibration={info.name: x})
    before, after = (Session(m).run({info.name: x})[0].astype(np.float64) for m in (model, result.model))
    kept, ordered, held_out = before.argmax(1) == after.argmax(1), np.sort(before), np.arange(100) % 5 == 2
    sure = ordered[:, -1] - ordered[:, -2]
    assert result.report.fidelity_on_samples is not None
    measured = result.report.fidelity_on_samples.outputs[0]
    assert measured.top1_agreement == kept[held_out].mean() < 1.0
    expected = expected_agreement(kept[held_out], sure[held_out], sure[~held_out])
    assert measured.expected_agreement == pytest.approx(expected)
    assert expected != pytest.approx(kept[held_out].mean(), abs=0.01)
    found = signs_of(result.report.fidelity, result.report.fidelity_on_samples, "data", result.report.diagnostics)
    assert found is not None
    assert found[1].held_out_agreement == measured.expected_agreement


def test_the_estimate_stands_in_every_form_of_the_report(folded: FoldResult) -> None:
    report = folded.report
    words = str(report.estimate)
    assert "estimated agreement on data" in words
    assert "80 % interval" in words
    assert words in str(report)
    assert words[1:] in render_html(report)
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
    onnx.save(models.residual(3), str(source))

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
