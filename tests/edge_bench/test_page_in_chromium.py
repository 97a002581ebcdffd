"""The page of a benchmark as a browser shows it."""

from __future__ import annotations

import pytest

from onnxfold.edge_bench.result import BenchResult, render_html
from tests.html_report.chromium import Opened, open_pages

ROWS = [
    BenchResult(model="net.onnx", device="host", method="measured-device", runtime="onnxruntime", latency_s=0.002),
    BenchResult(model="slow.onnx", device="host", method="measured-device", runtime="onnxruntime", latency_s=0.2),
    BenchResult(model="net.onnx", device="esp-eye", method="emulated-instructions", runtime="tflm", instructions=10**6),
]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    pages = {f"{width}": (render_html(ROWS), width) for width in (375, 1200)}
    return open_pages(pages, tmp_path_factory.mktemp("chromium"))


def test_the_table_scrolls_sideways_and_shows_it(opened: Opened) -> None:
    measured = opened.measured["375"]
    assert measured["outside"] == []
    (scroller,) = measured["scrollers"]
    assert scroller["inside"] > scroller["shown"]
    assert scroller["bar"] >= 12


def test_there_is_no_picture_without_a_latency() -> None:
    assert render_html(ROWS).count("<svg") == 2
    assert render_html(ROWS[2:]).count("<svg") == 0
