"""Results of a sweep as lines and as a table for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from onnxfold.config.quantities import show_bytes
from onnxfold.html_report.numbers import UNKNOWN, decimal, interval, percent, short
from onnxfold.sweeps.answers.pick import describe_row, fronts
from onnxfold.sweeps.row import DONE, QUANTITIES, Row
from onnxfold.terminal import Table


def summary(rows: Sequence[Row]) -> Table:
    """Return a table: the front of every model."""
    best, done = fronts(rows), sum(row.status == DONE for row in rows)
    named = QUANTITIES[best.quality].title
    cells = [
        (
            Path(row.model).name, row.goal, row.method, str(row.seed), part("weights", row), part("macs", row),
            part("latency", row), plain(best.quality, row),
        )
        for row in best.rows
    ]  # fmt: skip
    title = (
        f"{done} of {len(rows)} folds finished; these lose least {named.replace('relative ', '')} for their "
        f"{QUANTITIES[best.cost].title.partition(' ')[0]}"
    )
    headers = ("model", "goal", "method", "seed", "weights", "MACs", "latency", named)
    return Table(title, headers, cells, left=headers[:3])


def details(row: Row, folder: Path) -> list[str]:
    """Return the known quantities of a picked model, and the command that makes it."""
    lines = [describe_row(row), *([row.verdict] if row.verdict else [])]
    if row.file is not None:
        lines.append(f"model: {folder / row.file}")
    lines += [f"{QUANTITIES[name].title.partition(' (')[0]}: {row_text(name, row)}" for name in QUANTITIES
              if name != "seed" and QUANTITIES[name].value(row) is not None]  # fmt: skip
    lines += [f"warning: {row.warning}"] if row.warning else []
    lines += [f"note: {row.notes}"] if row.notes else []
    return [*lines, f"command: {row.command}"]


def row_text(name: str, row: Row) -> str:
    """Return a quantity of a row as text, with the part that is left where there was one before."""
    quantity = QUANTITIES[name]
    value, ratio = quantity.value(row), quantity.ratio(row)
    if value is None:
        return UNKNOWN
    text = value_text(name, value)
    if quantity.kind == "fraction":
        return text + _part_left(name, row)
    return text if ratio is None else f"{text} ({ratio:.2f}x)"


def value_text(name: str, value: float) -> str:
    """Return a value of a quantity as text, with its unit."""
    kind = QUANTITIES[name].kind
    if kind in ("fraction", "count"):
        return percent(value) if kind == "fraction" else short(value)
    text = show_bytes(int(value)) if kind == "bytes" else decimal(value)
    return f"{text} ms" if kind == "time" else text


def plain(name: str, row: Row) -> str:
    """Return a quantity of a row as text, without anything beside it."""
    return row_text(name, row).partition(" (")[0].partition(" of ")[0]


def _part_left(name: str, row: Row) -> str:
    if name == "accuracy" and row.accuracy_before is not None:
        return f" of {percent(row.accuracy_before)} before"
    if name == "agreement" and row.agreement_low is not None and row.agreement_high is not None:
        bounds = interval(row.agreement_low, row.agreement_high)
        return f" ({bounds} at 95 % confidence, {row.agreement_samples} samples of {row.agreement_on})"
    if name == "estimated_agreement" and row.estimated_agreement_low is not None:
        assert row.estimated_agreement_high is not None
        return f" ({interval(row.estimated_agreement_low, row.estimated_agreement_high)} in 80 % of cases)"
    return ""


def part(name: str, row: Row) -> str:
    """Return which part of its value before the fold a quantity of a row has."""
    ratio = QUANTITIES[name].ratio(row)
    return UNKNOWN if ratio is None else f"{ratio:.2f}x"
