"""Charts as inline SVG, in the colours of the page, with a description in words."""

import math
from collections.abc import Sequence

from onnxfold.html_report.elements import Content, Element, element
from onnxfold.html_report.numbers import decimal
from onnxfold.report import CorrelationHistogram, ErrorCurve, VarianceRatio

# Small charts are drawn on this canvas and scaled to their place; the frame is where the data lies.
_WIDTH, _HEIGHT = 160.0, 112.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 32.0, 154.0, 6.0, 92.0
_LOWEST_ERROR = 1e-4


def _picture(title: str, *children: Content, **attributes: str | float) -> Element:
    return element("svg", element("title", title), *children, role="img", **attributes)


def _chart(title: str, description: str, *children: Content) -> Element:
    return _picture(
        title, element("desc", description), *children, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", class_="chart"
    )


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Element:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _text(x: float, y: float, text: str, anchor: str) -> Element:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%"


def width_bar(before: int, after: int, widest: int) -> Element:
    """Return a bar of what a group was, with a bar of what is left on it."""
    return _picture(
        f"{after} of {before} channels left",
        element("rect", class_="before", width=_percent(before / max(widest, 1)), height="100%", rx=2),
        element("rect", class_="after", width=_percent(after / max(widest, 1)), height="60%", y="20%", rx=2),
        class_="bar",
    )


# -- variance ratios ---------------------------------------------------------------------------


def variance_span(ratios: Sequence[VarianceRatio]) -> float:
    """Return s such that [1 / s, s] holds about all ratios; from 1.5 to 32."""
    far = [abs(math.log(v)) for r in ratios for v in (r.mean, r.lower, r.upper) if math.isfinite(v) and v > 0]
    return math.exp(min(max([math.log(1.5), *far]), math.log(32.0)))


def variance_mark(ratio: VarianceRatio, span: float) -> Element:
    """Return the mean as a dot on the range between the quartiles, over the line at 1; logarithmic."""

    def place(value: float) -> str:
        if math.isnan(value):
            return "50%"
        part = math.log(value) / math.log(span) if 0.0 < value < math.inf else math.copysign(1.0, value - 1.0)
        return _percent(0.5 + 0.48 * min(max(part, -1.0), 1.0))

    healthy = element("line", x1="50%", x2="50%", y1="0", y2="100%", class_="healthy")
    if not math.isfinite(ratio.mean):
        return _picture("no channel to compare", healthy, class_="mark")
    return _picture(
        f"variance ratio {decimal(ratio.mean)}, quartiles {decimal(ratio.lower)} and {decimal(ratio.upper)}",
        healthy,
        element("line", x1=place(ratio.lower), x2=place(ratio.upper), y1="50%", y2="50%", class_="range"),
        element("circle", cx=place(ratio.mean), cy="50%", r=4, class_="dot"),
        class_="mark",
    )


# -- error curves ------------------------------------------------------------------------------


def error_span(curves: Sequence[ErrorCurve]) -> tuple[int, int]:
    """Return the decades, lowest and highest exponent, that all curves are drawn over."""
    found = [e for curve in curves for e in (*curve.errors, curve.error) if math.isfinite(e) and e > 0.0]
    lowest = max(min(found, default=0.1), _LOWEST_ERROR)
    highest = max(max(found, default=1.0), lowest)
    low = math.floor(math.log10(lowest))
    return low, max(math.ceil(math.log10(highest)), low + 1)


def error_chart(curve: ErrorCurve, span: tuple[int, int]) -> Element:
    """Return an error curve over the widths, logarithmic, with the chosen width."""
    low, high = span
    widest = max([*curve.widths, curve.width, 2])

    def x(width: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (width - 1) / (widest - 1)

    def y(error: float) -> float:
        exponent = math.log10(error) if error > 0.0 else low
        part = (min(max(exponent, low), high) - low) / (high - low)
        return _BOTTOM - (_BOTTOM - _TOP) * part

    points = [(x(w), y(e)) for w, e in zip(curve.widths, curve.errors, strict=True) if math.isfinite(e)]
    decades = range(low, high + 1)
    return _chart(
        f"Error curve of {curve.group}",
        f"Estimated error by width, from {decimal(curve.errors[0] if curve.errors else None)} at the narrowest; "
        f"{decimal(curve.error)} at the chosen width {curve.width} of {widest}.",
        *(_line(_LEFT, y(10.0**d), _RIGHT, y(10.0**d), "grid-line") for d in decades),
        *(_text(_LEFT - 4, y(10.0**d) + 4, _power(d), "end") for d in decades if (d - high) % 2 == 0),
        _line(x(curve.width), _TOP, x(curve.width), _BOTTOM, "chosen"),
        element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points), class_="curve"),
        element("circle", cx=x(curve.width), cy=y(curve.error), r=4, class_="dot")
        if curve.error == curve.error
        else None,
        _text(_LEFT, _HEIGHT - 6, "1", "start"),
        _text(_RIGHT, _HEIGHT - 6, f"{widest}", "end"),
    )


def _power(exponent: int) -> str:
    """Return a power of ten in the fewest letters."""
    superscript = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    return f"{10.0**exponent:g}" if abs(exponent) <= 2 else f"10{str(exponent).translate(superscript)}"


# -- correlations ------------------------------------------------------------------------------


def correlation_chart(histogram: CorrelationHistogram) -> Element:
    """Return a histogram before the fold as bars, with that after it as a line."""
    before, after = _shares(histogram.before), _shares(histogram.after)
    highest = max([*before, *after, 1e-9])
    left, right = 8.0, _RIGHT
    step = (right - left) / len(before)

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * share / highest

    bars = [
        element("rect", x=left + i * step, y=y(s), width=step - 1, height=_BOTTOM - y(s), class_="before")
        for i, s in enumerate(before)
    ]
    steps = [(left + (i + side) * step, y(share)) for i, share in enumerate(after) for side in (0, 1)]
    middle = (left + right) / 2
    return _chart(
        f"Correlations of {histogram.group}",
        f"Between {sum(histogram.before)} pairs of channels before the fold and {sum(histogram.after)} after it; "
        f"above 0.5 lie {_above(before):.1%} before and {_above(after):.1%} after.",
        *bars,
        element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in steps), class_="curve"),
        _line(left, _BOTTOM, right, _BOTTOM, "axis"),
        _line(middle, _BOTTOM, middle, _BOTTOM + 4, "axis"),
        _text(left, _HEIGHT - 5, "\u22121", "start"),
        _text(middle, _HEIGHT - 5, "0", "middle"),
        _text(right, _HEIGHT - 5, "1", "end"),
    )


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _above(shares: Sequence[float]) -> float:
    return sum(shares[3 * len(shares) // 4 :])
