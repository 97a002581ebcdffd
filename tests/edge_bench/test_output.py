"""Rows in the terminal, in Markdown and as a page."""

import re
from html.parser import HTMLParser

import pytest

from onnxfold.edge_bench.result import (
    COLUMNS,
    BenchResult,
    bytes_text,
    cells,
    latency_text,
    notes,
    render_html,
    tables,
)
from onnxfold.terminal import say_table

MEASURED = BenchResult(
    model="net<&>", device="host", method="measured-device", runtime="onnxruntime 1", threads=2, latency_s=0.012,
    latency_low_s=0.011, latency_high_s=0.014, ram_bytes=2048, flash_bytes=3 << 20, max_relative_error=3e-7,
    memory="VmHWM", basis="measured",
)  # fmt: skip
ESTIMATED = BenchResult(
    model="net<&>", device="esp-eye", method="estimated-latency", latency_low_s=0.1, latency_high_s=1.5,
    basis="LOW CONFIDENCE",
)  # fmt: skip
EMULATED = BenchResult(model="net<&>", device="nano", method="emulated-instructions", instructions=4_400_000)
MISFIT = BenchResult(
    model="big", device="nano", method="estimated-latency", status="does-not-fit", reason="needs 3.7 MB flash, has 1 MB"
)
ROWS = [MEASURED, ESTIMATED, EMULATED, MISFIT]


def test_cells() -> None:
    assert latency_text(MEASURED) == "12 ms (11-14)"
    assert latency_text(ESTIMATED) == "100 to 1,500 ms"
    assert latency_text(EMULATED) == ""
    assert latency_text(MISFIT) == "does not fit"
    assert [bytes_text(n) for n in (None, 0, 60928, 1 << 20)] == ["", "0.0 K", "59.5 K", "1.00 M"]
    assert cells(MEASURED)[3] == "onnxruntime 1, 2 threads"
    assert cells(EMULATED)[COLUMNS.index("instr.")] == "4.4 M"


def test_notes_say_reasons_and_what_estimates_rest_on() -> None:
    assert notes(ROWS) == [
        "big on nano: needs 3.7 MB flash, has 1 MB",
        "estimated-latency on esp-eye, net<&>: LOW CONFIDENCE",
        "memory of measured-device, host: VmHWM",
    ]


def test_the_terminal_shows_how_each_number_was_obtained(capsys: pytest.CaptureFixture[str]) -> None:
    for table in tables(ROWS):
        say_table(table)
    text = capsys.readouterr().out
    for method in ("measured device", "estimated latency", "emulated instructions"):
        assert method in text
    assert "does not fit" in text


class Page(HTMLParser):
    """Collects elements and checks that nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {"src", "onload", "srcset"} & {name for name, _ in attrs}
        assert all(not (value or "").startswith(("http", "//")) for name, value in attrs if name == "href")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_needs_no_other_file() -> None:
    html = render_html(ROWS)
    page = Page()
    page.feed(html)
    assert not {"script", "link", "img"} & set(page.tags)
    assert "net<&>" in page.text
    assert "needs 3.7 MB flash, has 1 MB" in page.text
    # A range and a median for what was measured, a range for the estimate, nothing for the others.
    assert page.tags.count("svg") == 2
    assert page.tags.count("circle") == 1
    places = [float(x) for x in re.findall(r'x[12]="([\d.]+)%"', html)]
    assert all(0 <= x <= 100 for x in places)


def test_a_page_without_latencies() -> None:
    assert "no latency known" in render_html([EMULATED, MISFIT])


def test_rows_are_flat_in_json_and_in_the_order_of_the_documentation() -> None:
    keys = list(MEASURED.to_dict())
    assert keys[:6] == ["model", "device", "method", "status", "reason", "runtime"]
    assert keys[-4:] == ["max_relative_error", "compared_inputs", "basis", "details"]
    assert all(not isinstance(value, dict) for key, value in MEASURED.to_dict().items() if key != "details")
