"""The sections on diagnostics."""

from onnxfold.html_report.charts import (
    correlation_chart,
    error_chart,
    error_span,
    variance_mark,
    variance_span,
)
from onnxfold.html_report.elements import Element, breakable, element, grid, table
from onnxfold.html_report.numbers import decimal, plural
from onnxfold.report import Diagnostics, VarianceRatio


def error_curves(diagnostics: Diagnostics) -> list[Element]:
    """Show what every width would have cost."""
    curves = diagnostics.error_curves
    if not curves:
        return [element("p", "None: the widths were not chosen by error curves.")]
    span = error_span(curves)
    figures = [
        element(
            "figure",
            error_chart(curve, span),
            element(
                "figcaption",
                breakable(curve.group),
                element("span", f"width {curve.width}, error {decimal(curve.error)}"),
            ),
        )
        for curve in curves
    ]
    return [
        element("p", "Estimated relative error of a group's consumers, by its width. All charts have the same scale."),
        _key(("curve", "error"), ("chosen", "chosen width")),
        grid(figures),
    ]


def variance_ratios(diagnostics: Diagnostics) -> list[Element]:
    """Show how the variances of all layers changed."""
    ratios = diagnostics.variance_ratios
    if not ratios:
        return [_missing(diagnostics)]
    span = variance_span(ratios)
    scale = element("span", *(element("span", decimal(v)) for v in (1 / span, 1.0, span)), class_="scale")
    rows = [(breakable(ratio.layer), variance_mark(ratio, span), _ratio(ratio)) for ratio in ratios]
    caption = (
        f"On {plural(diagnostics.samples, 'sample')}; logarithmic. Channels that the fold dropped, "
        "or that are constant, are left out."
    )
    return [
        element(
            "p",
            "Variance of the folded network's channels, divided by that of the channels that they replace. Near 1 is "
            "healthy, below 1 activations collapse, above 1 they overshoot.",
        ),
        _key(("dot", "mean over the channels"), ("range", "quartiles"), ("healthy", "1")),
        table(caption, ("Layer", scale, "Mean"), rows, "pictures"),
    ]


def _ratio(ratio: VarianceRatio) -> Element:
    left_out = element("small", f"{ratio.left_out} left out") if ratio.left_out else None
    return element("span", decimal(ratio.mean), left_out)


def correlations(diagnostics: Diagnostics) -> list[Element]:
    """Show how much the channels of every group say the same."""
    if not diagnostics.correlations:
        return [_missing(diagnostics)]
    figures = [
        element("figure", correlation_chart(histogram), element("figcaption", breakable(histogram.group)))
        for histogram in diagnostics.correlations
    ]
    return [
        element("p", "Correlations between all pairs of a group's channels, as its first consumer sees them."),
        _key(("before", "before"), ("curve", "after")),
        grid(figures),
    ]


def _missing(diagnostics: Diagnostics) -> Element:
    return element("p", f"Not measured: {diagnostics.not_run or 'no layer was found'}.")


def _key(*entries: tuple[str, str]) -> Element:
    shapes = {
        "before": lambda: element("rect", width="100%", height="100%", class_="before"),
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
