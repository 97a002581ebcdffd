"""The page of a sweep: complete, self-contained, escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from importlib import resources
from itertools import product

import pytest

from onnxfold.sweeps.answers.pick import front
from onnxfold.sweeps.page import render_page
from onnxfold.sweeps.row import Row
from tests.html_report.colours import contrast
from tests.html_report.parse import Page
from tests.sweeps.rows import row, sweep_rows

NASTY = "a</script><script>alert('x')</script>&\u202e\x1b\"'"


def _data(text: str) -> dict[str, list[dict[str, object]]]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    loaded: dict[str, list[dict[str, object]]] = json.loads(found)
    return loaded


def test_nothing_is_fetched_and_only_its_own_script_runs() -> None:
    text = render_page(sweep_rows())
    page = Page(text)
    for tag, attrs in page.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}
        assert not {"src", "srcset", "style", "action", "href", "xlink:href"} & set(attrs)
        assert not [key for key in attrs if key.startswith("on")]
    (policy,) = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    script = text[text.rindex("<script>") + 8 : text.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", text)


def test_all_folds_are_there_with_their_commands() -> None:
    rows = [replace(row, verdict=f"verdict: keeps {i}") for i, row in enumerate(sweep_rows())]
    data = _data(render_page(rows))
    assert data["rows"][3]["verdict"] == "verdict: keeps 3"
    assert [entry["command"] for entry in data["rows"]] == [r.command for r in rows if r.status == "done"]
    keys = [axis["key"] for axis in data["axes"]]
    assert keys == ["latency", "weights", "macs", "size", "latency_part", "weights_part", "macs_part", "size_part"]
    assert [axis["key"] for axis in data["errors"]] == ["agreement", "relative_error"]
    assert data["rows"][0]["values"]["agreement"] == pytest.approx(1 - (rows[0].agreement or 0))  # type: ignore[index]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_known(value: float) -> None:
    names = ("relative_error", "latency_ratio", "latency_ms_before", "accuracy", "accuracy_before")
    data = _data(render_page([row(1, **dict.fromkeys(names, value)), row(2)]))
    assert [entry["values"]["relative_error"] for entry in data["rows"]] == [None, 0.1]  # type: ignore[index]
    assert [entry["values"]["latency_part"] for entry in data["rows"]] == [None, 0.49]  # type: ignore[index]
    assert data["originals"][0]["values"]["latency"] == 3.0  # type: ignore[index]


def test_the_table_is_the_front_of_every_model() -> None:
    rows = sweep_rows()
    page = Page(render_page(rows))
    best = [
        r for m in ("net.onnx", "other/wide_net.onnx")
        for r in front([r for r in rows if r.model == m], "latency", "agreement")
    ]  # fmt: skip
    cells = page.rows("front")[1:]
    assert len(cells) == len(best) == 8
    assert cells[0] == ["net.onnx, sparsity 0.8, fold-ar, seed 0", "0.20x", "0.20x", "96.0%"]
    shown = page.texts[page.by_id("front")]
    assert all((r.command or "-") in shown for r in best)
    assert "BudgetError: the <budget> cannot be reached" in page.texts[page.by_id("failed")]


def test_the_models_before_and_the_pick_are_marked_in_a_table_of_all_folds() -> None:
    rows = sweep_rows()
    text = render_page(rows, rows[2])
    page = Page(text)
    cells = page.rows("all")
    assert cells[0][:3] == ["Fold", "latency (ms)", "weights"]
    assert len(cells) == 1 + 24 + 2
    assert cells[1][0] == "net.onnx, before"
    assert cells[1][2] == "1 k"
    assert cells[1][-2:] == ["100.0%", "0"]
    assert [line[0] for line in cells if line[0].startswith("picked: ")] == [
        "picked: net.onnx, sparsity 0.6, fold-ls, seed 0"
    ]
    data = _data(text)
    assert [entry["command"] for entry in data["rows"] if "picked" in entry] == [rows[2].command]
    assert [entry["model"] for entry in data["originals"]] == ["net.onnx", "other/wide_net.onnx"]
    values = data["originals"][0]["values"]
    assert (values["latency"], values["weights_part"], values["agreement"]) == (3.0, 1.0, 0.0)  # type: ignore[index]
    assert "picked" not in render_page(rows).partition("</style>")[2].partition("<script>")[0]


def test_texts_are_escaped_and_not_lost() -> None:
    rows = [row(1, model=NASTY, command=NASTY), row(2, status="failed", error=NASTY, error_type="E")]
    text = render_page(rows)
    assert text.count("<script") == 2
    assert "alert" in text
    page = Page(text)
    shown = "a</script><script>alert('x')</script>&\\u202e\\x1b\"'"
    assert shown in page.texts[page.by_id("failed")]
    assert shown in page.texts[page.by_id("front")]
    assert _data(text)["rows"][0]["command"] == shown


@pytest.mark.parametrize(
    "rows",
    [[], [row(status="failed", error="e", error_type="E")], [row(agreement=None, relative_error=None)]],
    ids=["nothing", "failures", "no error"],
)
def test_no_empty_chart_is_drawn(rows: list[Row]) -> None:
    page = Page(render_page(rows))
    assert "Nothing can be drawn" in page.texts[page.all("main")[0]]
    assert page.all("script") == []


def test_equal_rows_give_equal_pages() -> None:
    assert render_page(sweep_rows()) == render_page(sweep_rows())


def test_marks_contrast_in_light_and_dark() -> None:
    """WCAG 2.2, 1.4.11: 3 for what charts are read by; nothing makes a mark paler."""
    assert "opacity" not in resources.files("onnxfold.sweeps").joinpath("page.css").read_text()
    palettes = re.findall(r":root \{(.*?)\}", render_page(sweep_rows()), re.DOTALL)
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", a + b)) for a, b in zip(palettes[:2], palettes[2:], strict=True)
    )
    for palette, name in product((light, dark), ("m0", "m1", "m2", "m3", "m4", "m5", "muted")):
        assert contrast(palette[name], palette["page"]) >= 3.0, name
