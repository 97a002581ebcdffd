"""The page as a browser shows it, on a phone and on a desk."""

from __future__ import annotations

import re

import pytest

from onnxfold.html_report import render_html
from tests.html_report.chromium import Opened, open_pages
from tests.html_report.colours import contrast
from tests.html_report.reports import SECTION_NAMES, bare, large, nasty, rich, without_numbers

PAGES = {
    f"{make.__name__}-{width}": (make, width)
    for make in (rich, bare, nasty, without_numbers, large)
    for width in (360, 1200)
}
every_page = pytest.mark.parametrize("name", PAGES)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    pages = {name: (render_html(make()), width) for name, (make, width) in PAGES.items()}
    return open_pages(pages, tmp_path_factory.mktemp("chromium"))


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Pages with the faults that are looked for, and one page in the dark."""
    wide = (
        "<!DOCTYPE html><body><section id=s></section><p style='width:600px'>wide<script>console.error('loud')</script>"
    )
    pages = {"wide": (wide, 360), "dark": (render_html(rich()), 360)}
    return open_pages(pages, tmp_path_factory.mktemp("control"), dark=True)


@every_page
def test_nothing_overflows(opened: Opened, name: str) -> None:
    measured = opened.measured[name]
    assert measured["width"] == PAGES[name][1]
    assert measured["outside"] == []
    assert measured["scroll_width"] <= measured["width"]


@every_page
def test_all_sections_are_visible(opened: Opened, name: str) -> None:
    sections = opened.measured[name]["sections"]
    assert list(sections) == list(SECTION_NAMES)
    for section, (width, height) in sections.items():
        assert width > 0.8 * min(PAGES[name][1], 960), section
        assert height > 60, section


@every_page
def test_labels_of_charts_can_be_read(opened: Opened, name: str) -> None:
    assert opened.measured[name]["smallest_text"] >= 10
    assert opened.measured[name]["beside_charts"] == []


@every_page
def test_labels_do_not_lie_on_each_other(opened: Opened, name: str) -> None:
    assert opened.measured[name]["overlaps"] == []


def _hex(colour: str) -> str:
    """Return ``rgb(1, 2, 3)`` as ``#010203``; a colour that lets others shine through is none."""
    found = re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour)
    assert found, colour
    return "#" + "".join(f"{int(part):02x}" for part in found.groups())


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_every_bar_can_be_told_from_the_page_and_from_the_bar_below(
    opened: Opened, control: Opened, colours: str
) -> None:
    measured = opened.measured["rich-1200"] if colours == "light" else control.measured["dark"]
    background, bars = _hex(measured["background"]), {(kind, _hex(fill)) for kind, fill, _, _ in measured["bars"]}
    assert {kind for kind, _ in bars} == {"before", "after"}
    assert len(bars) == 2  # one colour each, wherever they are
    for _, fill in bars:
        assert contrast(fill, background) >= 3
    assert contrast(*(fill for _, fill in bars)) >= 3


def test_generated_images_are_shown(opened: Opened) -> None:
    for width in (360, 1200):
        ((natural, shown),) = opened.measured[f"rich-{width}"]["images"]
        assert natural == 4 * 17 - 1
        assert 60 < shown < width


def test_the_console_is_silent(opened: Opened) -> None:
    assert opened.console == []


def test_dark_colours_are_used_where_they_are_preferred(opened: Opened, control: Opened) -> None:
    light, dark = opened.measured["rich-360"]["background"], control.measured["dark"]["background"]
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(18, 22, 29)")


def test_faults_are_seen(control: Opened) -> None:
    measured = control.measured["wide"]
    assert measured["scroll_width"] > 360
    assert any(element.startswith("P") for element in measured["outside"])
    assert measured["sections"]["s"][1] == 0
    assert any("loud" in line for line in control.console)
