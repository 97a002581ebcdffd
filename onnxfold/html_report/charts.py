"""Charts as inline SVG, in the colours of the page, with a description in words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfold.html_report.elements import Content, Element, element
from onnxfold.html_report.numbers import decimal
from onnxfold.report.records import CorrelationHistogram, ErrorCurve, VarianceRatio

# Small charts are drawn on this canvas and scaled to their place; the frame is where the data lies.
_WIDTH, _HEIGHT = 200.0, 140.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 190.0, 8.0, 104.0
#: Between the lowest decade and zero, which no logarithm has.
_BREAK = 16.0
_LOWEST_ERROR = 1e-4
#: Closer to an end of its axis, a width has no tick of its own.
_TICK = 22.0


def picture(title: str, *children: Content, **attributes: str | float) -> Element:
    """Return an SVG picture with a title."""
    return element("svg", element("title", title), *children, role="img", **attributes)


def range_mark(title: str, ground: Element, low: str, middle: str | None, high: str) -> Element:
    """Return a range as a line over a ground, with a dot where its middle is known; places are in percent."""
    along = element("line", x1=low, x2=high, y1="50%", y2="50%", class_="range")
    dot = None if middle is None else element("circle", cx=middle, cy="50%", r=4, class_="dot")
    return picture(title, ground, along, dot, class_="mark")


def _chart(title: str, description: str, across: str, up: str, *children: Content) -> Element:
    return picture(
        title, element("desc", description), *children,
        line(_LEFT, _TOP, _LEFT, _BOTTOM, "axis"), line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis"),
        svg_text((_LEFT + _RIGHT) / 2, _BOTTOM + 30, across, "middle", "axis-title"),
        svg_text(0, 0, up, "middle", "axis-title", transform=f"translate(11,{(_TOP + _BOTTOM) / 2:g}) rotate(-90)"),
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", class_="chart",
    )  # fmt: skip


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Element:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def svg_text(x: float, y: float, text: str, anchor: str, class_: str = "label", **attributes: str) -> Element:
    """Return a text."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_, **attributes)


def _percent(part: float) -> str:
    return f"{100 * part:.2f}%"


def width_bar(before: int, after: int, widest: int) -> Element:
    """Return a bar of a group's width before the fold, with a bar of the width after it on top."""
    return picture(
        f"{after} of {before} channels left",
        element("rect", class_="before", width=_percent(before / max(widest, 1)), height="100%", rx=2),
        element("rect", class_="after", width=_percent(after / max(widest, 1)), height="60%", y="20%", rx=2),
        class_="bar",
    )


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
        return picture("no channel to compare", healthy, class_="mark")
    title = f"variance ratio {decimal(ratio.mean)}, quartiles {decimal(ratio.lower)} and {decimal(ratio.upper)}"
    return range_mark(title, healthy, place(ratio.lower), place(ratio.mean), place(ratio.upper))


@dataclass(frozen=True)
class ErrorScale:
    """The scale of errors that all curves share: decades, and below them zero where an error is zero."""

    low: int  # exponents of the lowest and the highest decade
    high: int
    has_zero: bool  # whether zero is on the scale
    is_cut: bool  # whether there are errors below the lowest decade; they are drawn on it

    def place(self, error: float) -> float:
        """Return where an error lies, from 0 at the top to 1."""
        if error <= 0.0:
            return 1.0
        bottom = 1.0 - _BREAK / (_BOTTOM - _TOP) if self.has_zero else 1.0
        part = (min(max(math.log10(error), self.low), self.high) - self.low) / (self.high - self.low)
        return bottom * (1.0 - part)


def error_scale(curves: Sequence[ErrorCurve]) -> ErrorScale:
    """Return the scale that holds the errors of all curves."""
    errors = [e for curve in curves for e in (*curve.errors, curve.error) if math.isfinite(e) and e >= 0.0]
    above = [e for e in errors if e > 0.0]
    lowest = max(min(above, default=0.1), _LOWEST_ERROR)
    highest = max(max(above, default=1.0), lowest)
    low = math.floor(math.log10(lowest))
    is_cut = any(error < 10.0**low for error in above)
    return ErrorScale(low, max(math.ceil(math.log10(highest)), low + 1), len(above) < len(errors), is_cut)


def error_chart(curve: ErrorCurve, scale: ErrorScale) -> Element:
    """Return an error curve over the widths, logarithmic, with the chosen width."""
    widest = max([*curve.widths, curve.width, 2])

    def x(width: int) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (width - 1) / (widest - 1)

    def y(error: float) -> float:
        return _TOP + (_BOTTOM - _TOP) * scale.place(error)

    points = [(x(w), y(e)) for w, e in zip(curve.widths, curve.errors, strict=True) if math.isfinite(e)]
    decades = range(scale.low, scale.high + 1)
    named = [d for d in decades if (d - scale.high) % 2 == 0 or d == scale.low]
    ticks = [(10.0**d, ("\u2264" if scale.is_cut and d == scale.low else "") + _power(d)) for d in named]
    chosen = x(curve.width)
    far = min(chosen - _LEFT, _RIGHT - chosen) > _TICK
    return _chart(
        f"Error curve of {curve.group}",
        f"Estimated error by width, from {decimal(curve.errors[0] if curve.errors else None)} at the narrowest; "
        f"{decimal(curve.error)} at the chosen width {curve.width} of {widest}.",
        "width (channels)",
        "relative error",
        *(line(_LEFT, y(10.0**d), _RIGHT, y(10.0**d), "grid-line") for d in decades),
        *(svg_text(_LEFT - 4, y(error) + 4, text, "end") for error, text in ticks),
        svg_text(_LEFT - 4, _BOTTOM + 4, "0", "end") if scale.has_zero else None,
        line(chosen, _TOP, chosen, _BOTTOM, "chosen"),
        element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in points), class_="curve"),
        element("circle", cx=chosen, cy=y(curve.error), r=4, class_="dot") if math.isfinite(curve.error) else None,
        svg_text(_LEFT, _BOTTOM + 14, "1", "middle"),
        svg_text(chosen, _BOTTOM + 14, f"{curve.width}", "middle") if far else None,
        svg_text(_RIGHT, _BOTTOM + 14, f"{widest}", "middle"),
    )


def _power(exponent: int) -> str:
    """Return a power of ten in the fewest letters."""
    superscript = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
    return f"{10.0**exponent:g}" if abs(exponent) <= 2 else f"10{str(exponent).translate(superscript)}"


def correlation_chart(histogram: CorrelationHistogram) -> Element:
    """Return a histogram before the fold as bars, with that after it as a line."""
    before, after = _shares(histogram.before), _shares(histogram.after)
    highest = max([*before, *after, 1e-9])
    step = (_RIGHT - _LEFT) / len(before)

    def y(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * share / highest

    bars = [
        element("rect", x=_LEFT + i * step, y=y(s), width=step - 1, height=_BOTTOM - y(s), class_="before")
        for i, s in enumerate(before)
    ]
    steps = [(_LEFT + (i + side) * step, y(share)) for i, share in enumerate(after) for side in (0, 1)]
    middle = (_LEFT + _RIGHT) / 2
    return _chart(
        f"Correlations of {histogram.group}",
        f"Between {sum(histogram.before)} pairs of channels before the fold and {sum(histogram.after)} after it; "
        f"above 0.5 lie {_above(before):.1%} before and {_above(after):.1%} after.",
        "correlation",
        "pairs",
        *bars,
        element("polyline", points=" ".join(f"{a:.1f},{b:.1f}" for a, b in steps), class_="curve"),
        line(middle, _BOTTOM, middle, _BOTTOM + 4, "axis"),
        svg_text(_LEFT - 4, _BOTTOM + 4, "0", "end"),
        svg_text(_LEFT - 4, _TOP + 4, f"{highest:.0%}", "end"),
        svg_text(_LEFT, _BOTTOM + 14, "\u22121", "start"),
        svg_text(middle, _BOTTOM + 14, "0", "middle"),
        svg_text(_RIGHT, _BOTTOM + 14, "1", "middle"),
    )


def _shares(counts: Sequence[int]) -> list[float]:
    total = sum(counts)
    return [count / total if total else 0.0 for count in counts]


def _above(shares: Sequence[float]) -> float:
    return sum(shares[3 * len(shares) // 4 :])
