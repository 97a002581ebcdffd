"""The page's structure: complete, self-contained, escaped, accessible."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from functools import cache
from itertools import product

import pytest

from onnxfold.html_report import render_html
from onnxfold.report import Fidelity, FoldReport
from tests.html_report.colours import contrast
from tests.html_report.parse import Page
from tests.html_report.reports import NASTY, SECTION_NAMES, bare, large, nasty, rich, without_numbers

REPORTS = {f.__name__: f for f in (bare, rich, nasty, without_numbers, large)}
every_report = pytest.mark.parametrize("make", REPORTS.values(), ids=REPORTS)


@cache
def text_of(make: Callable[[], FoldReport]) -> str:
    return render_html(make())


@cache
def page_of(make: Callable[[], FoldReport]) -> Page:
    return Page(text_of(make))


@every_report
def test_all_sections_are_there_and_linked(make: Callable[[], FoldReport]) -> None:
    page = page_of(make)
    sections = [page.elements[i][1]["id"] for i in page.all("section")]
    assert sections == list(SECTION_NAMES)
    assert [page.elements[i][1]["href"] for i in page.all("a")] == [f"#{name}" for name in SECTION_NAMES]
    for name in SECTION_NAMES:
        inside = page.inside(page.by_id(name))
        assert page.elements[inside[0]][0] == "h2"
        assert len(page.texts[page.by_id(name)]) > len(page.texts[inside[0]]), f"{name} is empty"
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


@every_report
def test_nothing_is_fetched_or_run(make: Callable[[], FoldReport]) -> None:
    page = page_of(make)
    for tag, attrs in page.elements:
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form", "image", "use"}
        assert not {"srcset", "style", "action", "xlink:href"} & set(attrs)
        assert re.match("data:image/png;base64,[A-Za-z0-9+/=]+$", attrs["src"]) if "src" in attrs else tag != "img"
        assert not [key for key in attrs if key.startswith("on")]
        assert attrs.get("href", "#").startswith("#")
    (style,) = page.all("style")
    assert not re.search(r"url\(|@import|@font-face|expression\(", page.texts[style])
    policy = [a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_texts_are_escaped_and_not_lost() -> None:
    text = render_html(nasty())
    page = Page(text)
    body = page.texts[page.all("body")[0]]
    sections = {name: page.texts[page.by_id(name)] for name in SECTION_NAMES}
    for name in (
        "fidelity",
        "inputs",
        "widths",
        "errors",
        "variances",
        "correlations",
        "refusals",
        "passes",
        "reproduce",
    ):
        # A shell command quotes what stands in it once more.
        expected = NASTY.replace("'", "'\"'\"'") if name == "reproduce" else NASTY
        assert expected in sections[name], name
    assert sections["refusals"].count(NASTY) == 4
    assert "通道/卷积层_é\u0301_🙂" in sections["widths"]
    assert NASTY in page.texts[page.all("header")[0]]
    assert NASTY in page.texts[page.all("footer")[0]]
    assert "<script" not in text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]", body)
    assert text.encode("utf-8").decode("utf-8") == text


@every_report
def test_pictures_and_tables_can_be_read_aloud(make: Callable[[], FoldReport]) -> None:
    page = page_of(make)
    assert page.elements[page.all("html")[0]][1]["lang"] == "en"
    for i in page.all("svg"):
        attrs = page.elements[i][1]
        if attrs.get("aria-hidden") == "true":
            continue
        title = page.of[i][0]
        assert attrs["role"] == "img"
        assert page.elements[title][0] == "title"
        assert page.texts[title].strip()
        if attrs["class"] == "chart":
            assert page.elements[page.of[i][1]][0] == "desc"
    for i in page.all("table"):
        assert page.elements[page.of[i][0]][0] == "caption"
        assert page.texts[page.of[i][0]].strip()
    assert all(page.elements[i][1]["scope"] in {"row", "col"} for i in page.all("th"))
    levels = [page.elements[i][0] for i in range(len(page.elements)) if page.elements[i][0] in {"h1", "h2", "h3"}]
    assert levels == ["h1"] + ["h2"] * len(SECTION_NAMES)


def test_the_numbers_are_those_of_the_report() -> None:
    report = rich()
    page = Page(render_html(report))
    assert page.rows("numbers")[1] == ["parameters", "2,801,962", "1,399,918", "50.0%"]
    assert page.rows("numbers")[-1] == ["channels in groups", "192", "168", "12.5%"]
    assert page.rows("fidelity")[1] == ["logits", "0.147", "97.5%", "94.8% to 98.8%"]
    assert "256 samples of held-out dead leaves" in page.texts[page.by_id("fidelity")]
    assert "Accuracy 92.00% -> 91.00%." in page.texts[page.by_id("fidelity")]
    assert page.texts[page.by_id("inputs")].endswith("512 samples of dead-leaves: the model has no BatchNormalization.")
    widths = page.rows("widths")[1:]
    assert [(row[0], row[2]) for row in widths] == [
        ("g1 /stem/conv/Conv", "64"),
        ("g2 /layer1/conv1/Conv", "64 \u2192 561 duplicate"),
        ("g3 /classifier/fc1/Gemm", "64 \u2192 482 duplicates"),
    ]
    assert [row[2] for row in page.rows("variances")[1:]] == ["1", "0.91 left out", "0.812 left out"]
    assert "width 32, error 0.01" in page.texts[page.by_id("errors")]
    assert page.rows("refusals")[1][0] == "2,560"
    assert page.rows("passes")[1] == ["FoldConstants", "1.0", "no"]
    header = page.texts[page.all("header")[0]]
    assert "resnet18_w32.onnx" in header
    assert "reached sparsity 0.499 instead of 0.5" in header
    assert page.rows("reproduce")[1:] == [
        ["onnxfold", "0.1.0"], ["numpy", "2.0.0"], ["onnx", "1.17.0"], ["SHA-256 of the model's file", "5e" * 32],
    ]  # fmt: skip
    assert "onnxfold 0.1.0, numpy 2.0.0, onnx 1.17.0; folded in 31.4 s." in page.texts[page.all("footer")[0]]


def test_every_measure_of_an_output_is_in_the_table() -> None:
    report = rich()
    assert report.fidelity is not None
    masks = Fidelity("mask", 0.1, kind="dense", pixel_agreement=0.875, mean_iou=0.75)
    report.fidelity.outputs.append(masks)
    page = Page(render_html(report))
    assert page.rows("fidelity")[2] == ["mask", "0.1", "", "", "positions with the same class 87.5%, mean IoU 75.0%"]


def test_every_section_explains_its_words() -> None:
    page = page_of(bare)
    for name in SECTION_NAMES:
        lines = [i for i in page.inside(page.by_id(name)) if page.elements[i][1].get("class") == "explained"]
        assert len(lines) == 1, name
    text = page.texts[page.all("main")[0]]
    words = (
        "Parameters are", "MACs are", "Sparsity is", "fold group", "Relative error:", "Top-1 agreement:",
        "The interval holds", "Duplicates are", "The cluster says", "repair how", "Axes of weights",
    )  # fmt: skip
    assert [word for word in words if word not in text] == []


def test_images_are_shown_and_no_part_of_the_json_report() -> None:
    report = rich()
    page = Page(render_html(report))
    (image,) = (page.elements[i][1] for i in page.all("img"))
    assert base64.b64decode(image["src"].partition(",")[2]) == report.picture
    assert report.picture.startswith(b"\x89PNG")
    assert image["alt"]
    assert "picture" not in json.loads(report.to_json())


def test_what_is_missing_is_said() -> None:
    page = page_of(bare)
    for name, words in {
        "numbers": "unknown",
        "fidelity": "was not measured: not verified",
        "inputs": "was not run",
        "widths": "no fold groups",
        "errors": "not chosen by error curves",
        "variances": "Not measured: ",
        "correlations": "Not measured: ",
        "refusals": "Every weight axis can be folded",
        "reproduce": "onnxfold fold IN.onnx OUT.onnx",
    }.items():
        assert words in page.texts[page.by_id(name)], name


def test_long_lists_open_on_demand_and_are_complete() -> None:
    page = page_of(large)
    for name in ("widths", "errors", "variances", "correlations", "refusals"):
        inside = page.inside(page.by_id(name))
        (more,) = [i for i in inside if page.elements[i][0] == "details"]
        assert "160 more" in page.texts[more]
        text = page.texts[page.by_id(name)]
        assert all(f"/encoder/layers.{i}/" in text for i in range(200)), name


def test_json_holds_the_diagnostics() -> None:
    report = without_numbers()
    written = json.loads(report.to_json())["diagnostics"]
    assert written["variance_ratios"][0] == {
        "layer": "a", "mean": None, "lower": None, "upper": None, "channels": 0, "left_out": 4,
    }  # fmt: skip
    assert len(written["correlations"][0]["before"]) == 20
    assert json.loads(rich().to_json())["diagnostics"]["error_curves"][0]["widths"] == [1, 16, 32, 64]


def test_equal_reports_give_equal_pages() -> None:
    assert render_html(rich()) == render_html(rich())


def test_colours_contrast_in_light_and_dark() -> None:
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for what charts are read by (1.4.11)."""
    page = page_of(bare)
    palettes = re.findall(r":root \{(.*?)\}", page.texts[page.all("style")[0]], re.DOTALL)
    assert len(palettes) == 2
    for palette in palettes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", palette))
        for front, back, least in [
            *product(("text", "muted", "after"), ("page",), (4.5,)),
            *product(("text", "muted"), ("card", "code"), (4.5,)),
            *product(("before", "after", "good"), ("page", "card"), (3.0,)),
            ("after", "before", 3.0),  # one is drawn on the other
        ]:
            assert contrast(colours[front], colours[back]) >= least, f"{front} on {back}"
