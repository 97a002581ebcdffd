"""Where the marks lie."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element

import pytest

from onnxfold.html_report.charts import (
    correlation_chart,
    error_chart,
    error_scale,
    variance_mark,
    variance_span,
    width_bar,
)
from onnxfold.html_report.elements import element, serialise
from onnxfold.html_report.sections import correlations, error_curves
from onnxfold.report.records import CorrelationHistogram, Diagnostics, ErrorCurve, VarianceRatio


def _of(svg: Element, class_: str) -> list[Element]:
    return [e for e in svg.iter() if e.get("class") == class_]


def _percent(text: str | None) -> float:
    assert text is not None
    assert text.endswith("%")
    return float(text[:-1])


def _points(svg: Element) -> list[tuple[float, float]]:
    (line,) = _of(svg, "curve")
    return [(float(x), float(y)) for x, y in (p.split(",") for p in (line.get("points") or "").split())]


def test_bars_are_as_long_as_groups_are_wide() -> None:
    bar = width_bar(64, 16, 256)
    assert _percent(_of(bar, "before")[0].get("width")) == 25.0
    assert _percent(_of(bar, "after")[0].get("width")) == 6.25
    assert bar[0].text == "16 of 64 channels left"


def test_ratios_lie_symmetrically_about_one() -> None:
    ratios = [VarianceRatio("l", mean, mean / 1.1, mean * 1.1, 8, 0) for mean in (0.25, 0.5, 1.0, 2.0, 4.0)]
    span = variance_span(ratios)
    places = [_percent(_of(variance_mark(r, span), "dot")[0].get("cx")) for r in ratios]
    assert places[2] == 50.0
    assert places == sorted(places)
    assert places[1] - places[0] == pytest.approx(places[4] - places[3], abs=0.02)
    assert places[0] + places[4] == pytest.approx(100.0, abs=0.02)
    (line,) = _of(variance_mark(ratios[0], span), "range")
    assert _percent(line.get("x1")) < places[0] < _percent(line.get("x2"))
    assert _percent(line.get("x1")) >= 0.0


@pytest.mark.parametrize(("mean", "place"), [(0.0, 2.0), (1e-30, 2.0), (1e30, 98.0)])
def test_ratios_beyond_the_scale_lie_at_its_end(mean: float, place: float) -> None:
    ratio = VarianceRatio("l", mean, mean, mean, 8, 0)
    assert _percent(_of(variance_mark(ratio, variance_span([ratio])), "dot")[0].get("cx")) == place


def test_no_ratio_no_mark() -> None:
    mark = variance_mark(VarianceRatio("l", math.nan, math.nan, math.nan, 0, 8), 2.0)
    assert not _of(mark, "dot")
    assert mark[0].text == "no channel to compare"


def test_error_curves_share_a_scale_and_the_choice_lies_on_the_curve() -> None:
    high = ErrorCurve("a", (1, 8, 32), (10.0, 0.1, 0.0), 8, 0.1)
    low = ErrorCurve("b", (1, 8, 32), (0.1, 0.001, 0.0), 1, 0.1)
    scale = error_scale([high, low])
    assert (scale.low, scale.high, scale.has_zero, scale.is_cut) == (-3, 1, True, False)
    a, b = error_chart(high, scale), error_chart(low, scale)
    assert _points(a)[1][1] == _points(b)[0][1]
    assert _points(a)[0][1] < _points(a)[1][1] < _points(a)[2][1]
    for chart, index in ((a, 1), (b, 0)):
        (dot,) = _of(chart, "dot")
        assert (float(dot.get("cx") or 0), float(dot.get("cy") or 0)) == pytest.approx(_points(chart)[index], abs=0.1)
    labels = [e.text for e in a.iter("text")]
    assert {"10\u207b\u00b3", "0.1", "10", "32"} <= set(labels)


def test_axes_of_error_curves_are_labelled() -> None:
    curve = ErrorCurve("a", (1, 16, 32), (1.0, 0.1, 0.01), 16, 0.1)
    labels = [e.text for e in error_chart(curve, error_scale([curve])).iter("text")]
    assert {"width (channels)", "relative error", "1", "16", "32", "0.01"} <= set(labels)


def test_an_error_of_zero_is_drawn_as_zero_and_a_small_one_is_not() -> None:
    zero = ErrorCurve("a", (1, 8, 32), (1.0, 1e-3, 0.0), 32, 0.0)
    small = ErrorCurve("b", (1, 8, 32), (1.0, 1e-3, 1e-7), 32, 1e-7)
    scale = error_scale([zero, small])
    at_zero, at_small = (error_chart(curve, scale) for curve in (zero, small))
    (axis,) = [e for e in _of(at_zero, "axis") if e.get("y1") == e.get("y2")]
    (dot,), (small_dot,) = _of(at_zero, "dot"), _of(at_small, "dot")
    assert dot.get("cy") == axis.get("y1")
    assert float(small_dot.get("cy") or 0) < float(dot.get("cy") or 0) - 10
    zero_label, cut_label = (
        next(e for e in at_zero.iter("text") if e.text == t) for t in ("0", "\u226410\u207b\u2074")
    )
    assert float(zero_label.get("y") or 0) - 4 == float(axis.get("y1") or 0)
    assert float(cut_label.get("y") or 0) - 4 == pytest.approx(float(small_dot.get("cy") or 0))
    assert not error_scale([ErrorCurve("c", (1, 2), (1.0, 0.1), 2, 0.1)]).has_zero


def test_a_curve_without_finite_points_is_no_chart() -> None:
    nothing = ErrorCurve("nothing", (1, 2), (math.inf, math.nan), 2, math.nan)
    curve = ErrorCurve("curve", (1, 2), (1.0, 0.5), 2, 0.5)
    shown = serialise(element("div", *error_curves(Diagnostics(error_curves=(nothing, curve)))))
    assert shown.count("<figure") == 1
    assert "No error is known: nothing." in shown


def test_a_histogram_without_pairs_is_no_chart() -> None:
    found = Diagnostics(correlations=(CorrelationHistogram("still", (0,) * 20, (0,) * 20),))
    shown = serialise(element("div", *correlations(found)))
    assert "<svg" not in shown
    assert "no pairs of channels that vary: still." in shown


def test_histograms_are_shares_of_their_own_pairs() -> None:
    before = (0,) * 10 + (8, 4) + (0,) * 8
    after = (0,) * 10 + (2, 1) + (0,) * 8
    chart = correlation_chart(CorrelationHistogram("a", before, after))
    heights = [float(e.get("height") or 0) for e in _of(chart, "before")]
    assert heights[10] == pytest.approx(2 * heights[11])
    assert sum(h > 0 for h in heights) == 2
    steps = _points(chart)
    base = steps[0][1]
    assert base - steps[20][1] == pytest.approx(heights[10], abs=0.1)
    assert base - steps[22][1] == pytest.approx(heights[11], abs=0.1)
