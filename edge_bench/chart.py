"""Charts of benchmark rows as a self-contained HTML page."""

import math
from collections.abc import Sequence

from onnxfold._version import __version__
from onnxfold.edge_bench.result import COLUMNS, BenchResult, cells, latency_text, notes
from onnxfold.html_report.elements import Element, breakable, element, page, table

_STYLE = "header, main, footer { max-width: 76rem; } .figures th { white-space: nowrap; }"
_MEANINGS = {
    "measured-device": "measured on the device",
    "emulated-instructions": "instructions counted in an emulator, which does not model the device's time",
    "estimated-latency": "estimated: counted instructions x assumed cycles per instruction / clock; a range",
    "paper-reported": "as published",
}
_TITLE = "Latency of one inference"


def render_html(rows: Sequence[BenchResult]) -> str:
    """Return rows as one page with charts and all figures; it fetches nothing."""
    methods = dict.fromkeys(row.method for row in rows)
    key = element("ul", *(element("li", f"{m}: {_MEANINGS[m]}") for m in methods), class_="notes")
    header = element("header", element("h1", "Benchmark"), key)
    body = header, element("main", *_sections(rows)), element("footer", f"onnxfold {__version__}")
    return page("onnxfold bench", *body, style=_STYLE)


def _sections(rows: Sequence[BenchResult]) -> list[Element]:
    span = _span(rows)
    made = []
    for device in dict.fromkeys(row.device for row in rows):
        own = [row for row in rows if row.device == device]
        made.append(element("section", element("h2", device), _pictures(own, span)))
    figures = table("K = 1024 bytes, M = 1024 K", COLUMNS, map(cells, rows), "figures")
    said = element("ul", *(element("li", line) for line in notes(rows)))
    frame = element(
        "div", figures, class_="scroll", tabindex="0", role="region", aria_label="All figures, side by side"
    )
    return [*made, element("section", element("h2", "All figures"), frame, said)]


def _pictures(rows: Sequence[BenchResult], span: tuple[float, float] | None) -> Element:
    """Return the latencies of a device as pictures; as text alone where none is known."""
    if span is None or not any(map(_range, rows)):
        return table("no latency known", ("model", ""), [(_label(row), _figure(row)) for row in rows], "facts")
    lines = [(_label(row), _mark(row, span), _figure(row)) for row in rows]
    caption = f"from {span[0] * 1e3:g} to {span[1] * 1e3:g} ms, logarithmic"
    return table(caption, ("model", _TITLE, ""), lines, "pictures")


def _label(row: BenchResult) -> Element:
    method = f"{row.method}, {row.runtime}" if row.runtime else row.method
    return element("span", breakable(row.model), element("small", method))


def _figure(row: BenchResult) -> str:
    """Return the text beside a row's picture: the median, the range of an estimate, or instructions."""
    if row.instructions is not None and row.latency_s is None:
        return f"{row.instructions / 1e6:.3g} M instructions"
    return latency_text(row).partition(" (")[0]


def _range(row: BenchResult) -> tuple[float, float] | None:
    """Return the ends of what is drawn, None for a row without latency."""
    known = [v for v in (row.latency_low_s, row.latency_s, row.latency_high_s) if v is not None and v > 0.0]
    return (min(known), max(known)) if row.status == "ok" and known else None


def _span(rows: Sequence[BenchResult]) -> tuple[float, float] | None:
    """Return whole decades, in seconds, that hold all latencies."""
    ranges = [r for row in rows if (r := _range(row))]
    if not ranges:
        return None
    low = math.floor(math.log10(min(r[0] for r in ranges)))
    high = math.ceil(math.log10(max(r[1] for r in ranges)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def _mark(row: BenchResult, span: tuple[float, float]) -> Element | str:
    ends = _range(row)
    if ends is None:
        return "unknown"

    def place(seconds: float) -> str:
        return f"{100 * math.log(seconds / span[0]) / math.log(span[1] / span[0]):.2f}%"

    middle = row.latency_s
    return element(
        "svg",
        element("title", f"{row.model} on {row.device}: {latency_text(row)}"),
        element("line", x1="0", x2="100%", y1="50%", y2="50%", class_="grid-line"),
        element("line", x1=place(ends[0]), x2=place(ends[1]), y1="50%", y2="50%", class_="range"),
        element("circle", cx=place(middle), cy="50%", r=4, class_="dot") if middle else None,
        role="img",
        class_="mark",
    )
