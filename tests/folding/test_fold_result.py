"""Representations of a fold's result: one line in a terminal, a table in a notebook."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import onnxfold
from onnxfold.folding.fold_model import WrittenModel
from onnxfold.folding.fold_result import FoldResult
from onnxfold.graph.view import GraphView
from onnxfold.report import Fidelity, FidelityReport, FoldReport, ModelSize
from testing import models
from tests.html_report.parse import Page
from tests.html_report.reports import NASTY, bare

SIZES = "<FoldResult: 1,000 -> 500 parameters, 4.1 KiB -> 2.1 KiB, 50.0% removed by fold-naive"


def _result(report: FoldReport) -> FoldResult:
    view = cast(GraphView, None)
    return FoldResult(WrittenModel(view, report.after, None), report)


def _with_fidelity(*outputs: Fidelity) -> FoldReport:
    return replace(bare(), fidelity=FidelityReport(list(outputs), 256, "held-out dead leaves"))


def test_one_line_says_sizes_sparsity_and_method() -> None:
    assert repr(_result(bare())) == SIZES + ">"


def test_one_line_says_the_lowest_agreement() -> None:
    report = _with_fidelity(Fidelity("a", 0.2, 0.9), Fidelity("b", 0.1, 0.8), Fidelity("c", 0.3))
    assert repr(_result(report)) == SIZES + ", top-1 agreement 80.0% on 256 samples of held-out dead leaves>"


def test_one_line_says_the_largest_error_of_outputs_without_classes() -> None:
    report = _with_fidelity(Fidelity("a", 0.25), Fidelity("b", 0.125))
    assert repr(_result(report)) == SIZES + ", relative error 0.25 on 256 samples of held-out dead leaves>"


def test_the_table_has_the_numbers_and_escapes_names() -> None:
    report = replace(bare(), model=f"folder/{NASTY}", requested=NASTY)
    html = _result(report)._repr_html_()
    page = Page(html)
    assert {tag for tag, _ in page.elements} == {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert {name for _, attributes in page.elements for name in attributes} <= {"class", "scope"}  # fetches nothing
    assert NASTY in page.texts[page.all("caption")[0]]
    for text in ("1,000", "500", "50.0%", "unknown", "not verified"):
        assert text in html


def test_a_real_result_agrees_with_its_report() -> None:
    result = onnxfold.fold(models.mlp(0), 0.3, method="fold-naive", allocation="uniform")
    assert result.report.fidelity is not None
    agreement = f"{result.report.fidelity.outputs[0].top1_agreement:.1%}"
    for text in (repr(result), result._repr_html_()):
        assert f"{result.report.before.parameters:,}" in text
        assert f"{result.report.after.parameters:,}" in text
        assert f"top-1 agreement {agreement}" in text
    assert "\n" not in repr(result)


def test_a_fold_that_saves_bytes_and_no_time_says_so() -> None:
    before = ModelSize(1000, 1000, 0)
    (note,) = before.time_notes(ModelSize(800, 980, 0))
    assert "20.0% of the weights and 2.0% of the multiply-accumulates" in note
    for unremarkable in (ModelSize(800, 850, 0), ModelSize(980, 1000, 0), ModelSize(800, None, 0)):
        assert not before.time_notes(unremarkable)
