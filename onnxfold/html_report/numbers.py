"""Formatting of numbers."""

import math
from functools import partial

from onnxfold.report import FoldReport, LatencyRecord, ModelSize, milliseconds

_UNITS = (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
UNKNOWN = "unknown"


def _known(value: float | None, *, form: str) -> str:
    return UNKNOWN if value is None or not math.isfinite(value) else format(value, form)


whole = partial(_known, form=",.0f")  # a count with separators
percent = partial(_known, form=".1%")  # a fraction
decimal = partial(_known, form=".3g")  # three digits


def short(value: float | None) -> str:
    """Return a count with three digits and a decimal prefix."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    prefix, size = next(((p, s) for p, s in reversed(_UNITS) if abs(value) >= s), ("", 1.0))
    return f"{value / size:.3g} {prefix}".rstrip()


def interval(low: float, high: float) -> str:
    """Return a pair of fractions as percent."""
    return f"{percent(low)} to {percent(high)}"


def removed(before: float | None, after: float | None) -> str:
    """Return which part is gone; nothing where that means nothing."""
    return "" if not before or after is None else percent(1.0 - after / before)


def plural(count: int, noun: str) -> str:
    """Return a count and its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def size_cells(before: ModelSize, after: ModelSize, latency: LatencyRecord | None) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table of the costs of two models, and of their latency, if it is known well."""
    rows = [
        ("parameters", *change(before.parameters, after.parameters)),
        (before.macs_title, *change(before.macs, after.macs)),
        ("size (bytes)", *change(before.size_bytes, after.size_bytes)),
    ]
    if latency is not None and latency.is_sure:
        times = milliseconds(latency.before_s), milliseconds(latency.after_s)
        rows.insert(2, ("latency (ms)", *times, removed(1.0, latency.ratio)))
    return rows


def cost_cells(report: FoldReport) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table of what a fold saves: costs, and channels in groups."""
    channels = sum(g.width for g in report.groups), sum(g.folded_width for g in report.groups)
    return [*size_cells(report.before, report.after, report.latency), ("channels in groups", *change(*channels))]


def change(old: int | None, new: int | None) -> tuple[str, str, str]:
    """Return two counts, and which part of the first is gone."""
    return (UNKNOWN, UNKNOWN, "") if old is None or new is None else (whole(old), whole(new), removed(old, new))
