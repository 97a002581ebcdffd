"""The sections on diagnostics."""

import math

from onnxfold.html_report.charts import (
    correlation_chart,
    error_chart,
    error_scale,
    has_errors,
    has_pairs,
    variance_mark,
    variance_span,
)
from onnxfold.html_report.elements import Element, breakable, element, grid, table
from onnxfold.html_report.numbers import decimal, plural
from onnxfold.report import Diagnostics, VarianceRatio


def error_curves(diagnostics: Diagnostics) -> list[Element]:
    """Show the error of every group at every width."""
    curves = [curve for curve in diagnostics.error_curves if has_errors(curve)]
    left_out = [curve.group for curve in diagnostics.error_curves if not has_errors(curve)]
    if not diagnostics.error_curves:
        return [element("p", "None: the widths were not chosen by error curves.")]
    if not curves:
        return [_absence_line("No error is known", left_out)]
    scale = error_scale(curves)
    figures = [
        element(
            "figure",
            error_chart(curve, scale),
            element(
                "figcaption",
                breakable(curve.group),
                element("span", f"width {curve.width}, error {decimal(curve.error)}"),
            ),
        )
        for curve in curves
    ]
    return [
        key(("curve", "error"), ("chosen", "chosen width")),
        grid(figures),
        *([_absence_line("No error is known", left_out)] if left_out else []),
    ]


def variance_ratios(diagnostics: Diagnostics) -> list[Element]:
    """Show how the variances of all layers changed."""
    ratios = diagnostics.variance_ratios
    if not ratios:
        return [_missing(diagnostics)]
    span = variance_span(ratios)
    scale = element("span", *(element("span", decimal(v)) for v in (1 / span, 1.0, span)), class_="scale")
    rows = [
        (breakable(r.layer), variance_mark(r, span) if math.isfinite(r.mean) else "no channel to compare", _ratio(r))
        for r in ratios
    ]
    caption = (
        f"On {plural(diagnostics.samples, 'sample')}; logarithmic. Channels that the fold dropped, "
        "or that are constant, are left out."
    )
    return [
        key(("dot", "mean over the channels"), ("range", "quartiles"), ("healthy", "1")),
        table(caption, ("Layer", scale, "Mean"), rows, "pictures"),
    ]


def _ratio(ratio: VarianceRatio) -> Element:
    left_out = element("small", f"{ratio.left_out} left out") if ratio.left_out else None
    return element("span", decimal(ratio.mean), left_out)


def correlations(diagnostics: Diagnostics) -> list[Element]:
    """Show how much the channels of every group say the same."""
    if not diagnostics.correlations:
        return [_missing(diagnostics)]
    shown = [histogram for histogram in diagnostics.correlations if has_pairs(histogram)]
    left_out = [histogram.group for histogram in diagnostics.correlations if not has_pairs(histogram)]
    figures = [
        element("figure", correlation_chart(histogram), element("figcaption", breakable(histogram.group)))
        for histogram in shown
    ]
    if not figures:
        return [_absence_line("There are no pairs of channels that vary", left_out)]
    return [
        key(("before", "before"), ("curve", "after")),
        grid(figures),
        *([_absence_line("There are no pairs of channels that vary", left_out)] if left_out else []),
    ]


def _absence_line(why: str, groups: list[str]) -> Element:
    """Return a line in place of charts that would be empty."""
    return element("p", f"{why}: {', '.join(groups)}.", class_="muted")


def _missing(diagnostics: Diagnostics) -> Element:
    return element("p", f"Not measured: {diagnostics.not_run or 'no layer was found'}.")


def key(*entries: tuple[str, str]) -> Element:
    """Return the key of a chart, from pairs of a mark's class and its text."""
    shapes = {
        "before": lambda: element("rect", width="100%", height="100%", class_="before"),
        "after": lambda: element("rect", width="100%", height="100%", class_="after"),
        "join": lambda: element("circle", cx="50%", cy="50%", r=5, class_="join"),
        "dot": lambda: element("circle", cx="50%", cy="50%", r=4, class_="dot"),
    }

    def line(kind: str) -> Element:
        return element("line", x1="0", x2="100%", y1="50%", y2="50%", class_=kind)

    return element(
        "ul",
        *(
            element("li", element("svg", shapes[k]() if k in shapes else line(k), aria_hidden="true"), text)
            for k, text in entries
        ),
        class_="key",
    )
