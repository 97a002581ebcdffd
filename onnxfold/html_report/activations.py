"""The sections on diagnostics."""

import math
from collections.abc import Sequence

from onnxfold.html_report import charts
from onnxfold.html_report.elements import Element, breakable, element, grid, table
from onnxfold.html_report.numbers import decimal, plural
from onnxfold.report import Diagnostics, VarianceRatio


def error_curves(diagnostics: Diagnostics) -> list[Element]:
    """Show the error of every group at every width."""
    if not diagnostics.error_curves:
        return [element("p", "None: the widths were not chosen by error curves.")]
    curves = [curve for curve in diagnostics.error_curves if charts.has_errors(curve)]
    scale = charts.error_scale(curves)
    figures = [
        _figure(charts.error_chart(c, scale), c.group, element("span", f"width {c.width}, error {decimal(c.error)}"))
        for c in curves
    ]
    left_out = [curve.group for curve in diagnostics.error_curves if not charts.has_errors(curve)]
    return _charts((("curve", "error"), ("chosen", "chosen width")), figures, "No error is known", left_out)


def variance_ratios(diagnostics: Diagnostics) -> list[Element]:
    """Show how the variances of all layers changed."""
    ratios = diagnostics.variance_ratios
    if not ratios:
        return [_missing(diagnostics)]
    span = charts.variance_span(ratios)
    scale = element("span", *(element("span", decimal(v)) for v in (1 / span, 1.0, span)), class_="scale")
    rows = [(breakable(ratio.layer), _variance(ratio, span), _ratio(ratio)) for ratio in ratios]
    caption = (
        f"On {plural(diagnostics.samples, 'sample')}; logarithmic. Channels that the fold dropped, "
        "or that are constant, are left out."
    )
    return [
        key(("dot", "mean over the channels"), ("range", "quartiles"), ("healthy", "1")),
        table(caption, ("Layer", scale, "Mean"), rows, "pictures"),
    ]


def _variance(ratio: VarianceRatio, span: float) -> Element | str:
    return charts.variance_mark(ratio, span) if math.isfinite(ratio.mean) else "no channel to compare"


def _ratio(ratio: VarianceRatio) -> Element:
    left_out = element("small", f"{ratio.left_out} left out") if ratio.left_out else None
    return element("span", decimal(ratio.mean), left_out)


def correlations(diagnostics: Diagnostics) -> list[Element]:
    """Show how much the channels of every group say the same."""
    if not diagnostics.correlations:
        return [_missing(diagnostics)]
    figures = [_figure(charts.correlation_chart(h), h.group) for h in diagnostics.correlations if charts.has_pairs(h)]
    left_out = [histogram.group for histogram in diagnostics.correlations if not charts.has_pairs(histogram)]
    marks = ("before", "before"), ("curve", "after")
    return _charts(marks, figures, "There are no pairs of channels that vary", left_out)


def _figure(chart: Element, group: str, *more: Element) -> Element:
    return element("figure", chart, element("figcaption", breakable(group), *more))


def _charts(
    marks: Sequence[tuple[str, str]], figures: Sequence[Element], why_not: str, left_out: Sequence[str]
) -> list[Element]:
    """Return charts of groups with their key, and a line in place of those that would be empty."""
    line = [element("p", f"{why_not}: {', '.join(left_out)}.", class_="muted")] if left_out else []
    return [key(*marks), grid(figures), *line] if figures else line


def _missing(diagnostics: Diagnostics) -> Element:
    return element("p", f"Not measured: {diagnostics.not_run or 'no layer was found'}.")


def key(*entries: tuple[str, str]) -> Element:
    """Return the key of a chart, from pairs of a mark's class and its text."""
    return element(
        "ul",
        *(element("li", element("svg", _mark(kind), aria_hidden="true"), text) for kind, text in entries),
        class_="key",
    )


def _mark(kind: str) -> Element:
    if kind in ("before", "after"):
        return element("rect", width="100%", height="100%", class_=kind)
    if kind in ("join", "dot"):
        return element("circle", cx="50%", cy="50%", r=5 if kind == "join" else 4, class_=kind)
    return element("line", x1="0", x2="100%", y1="50%", y2="50%", class_=kind)
