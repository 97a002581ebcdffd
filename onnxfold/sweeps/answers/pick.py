"""The choice of one model, the front of those that no other one is better than in everything, and both as text."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from onnxfold.channels.group import lists_by_key
from onnxfold.config.quantities import show_bytes
from onnxfold.errors import ConfigError, NoModelError
from onnxfold.html_report.numbers import UNKNOWN, decimal, interval, percent, short
from onnxfold.sweeps.answers.query import Comparison, Expression
from onnxfold.sweeps.row import COSTS, DONE, QUALITIES, QUANTITIES, Quantity, Row
from onnxfold.terminal import Table

#: What decides between models that are equally good.
_TIES = ("latency", "weights", "macs", "size")


def pick(rows: Iterable[Row], expression: Expression, prefer: str | None = None) -> Row:
    """Return the best of the rows that an expression is true of."""
    finished = [row for row in rows if row.status == DONE]
    matching = [row for row in finished if expression.holds(row)]
    if not matching:
        raise NoModelError(_nearest(finished, expression))
    names = dict.fromkeys(name for name in (prefer, quality_of(matching), *_TIES) if name is not None)
    return min(matching, key=lambda row: [_badness(QUANTITIES[name], row) for name in names])


def check_preference(prefer: str | None) -> None:
    """Refuse a preference for anything but a quantity."""
    if prefer is not None and prefer not in QUANTITIES:
        raise ConfigError(f"--prefer '{prefer}' is not one of: {', '.join(QUANTITIES)}")


def quality_of(rows: Sequence[Row]) -> str | None:
    """Return the best quality that all rows have; None where there is none."""
    return next((q for q in QUALITIES if rows and all(QUANTITIES[q].value(row) is not None for row in rows)), None)


def _badness(quantity: Quantity, row: Row) -> tuple[bool, float]:
    value = quantity.value(row)
    return value is None, (0.0 if value is None else -value if quantity.more_is_better else value)


def _nearest(rows: Sequence[Row], expression: Expression) -> str:
    """Return why no row is meant, and which one comes closest."""
    if not rows:
        return "there is no finished fold to pick from: run 'onnxfold sweep MODEL... --out DIR' first"

    def missed(row: Row) -> list[Comparison]:
        return [comparison for comparison in expression.comparisons if not comparison.holds(row)]

    closest = min(rows, key=lambda row: (len(missed(row)), sum(c.distance(row) for c in missed(row))))
    misses = ", ".join(f"'{c.text}' (it is {c.shown(closest)})" for c in missed(closest))
    why = f"misses {misses}" if misses else "meets every comparison, but not the expression"
    return f"none of {len(rows)} folds meets it; the closest, {describe_row(closest)}, {why}"


def describe_row(row: Row) -> str:
    """Return a row in a few words."""
    return f"{row.model} at {row.goal} by {row.how}, seed {row.seed}"


def front(rows: Iterable[Row], cost: str, quality: str) -> list[Row]:
    """Return the rows that no other row is better than in one quantity without being worse in the other."""
    x, y = QUANTITIES[cost], QUANTITIES[quality]
    known = [row for row in rows if row.status == DONE and x.value(row) is not None and y.value(row) is not None]
    rows_of_front: list[Row] = []
    for row in sorted(known, key=lambda row: (_badness(x, row), _badness(y, row))):
        if not rows_of_front or _badness(y, row) < _badness(y, rows_of_front[-1]):
            rows_of_front.append(row)
    return rows_of_front


def fronts(rows: Sequence[Row]) -> tuple[str, str, list[Row]]:
    """Return the first cost and the best quality that are known, and the fronts by them, those of a model together."""
    done = [row for row in rows if row.status == DONE]
    quality = quality_of(done) or "relative_error"
    cost = next((name for name in COSTS if any(QUANTITIES[name].value(row) is not None for row in done)), "weights")
    by_model = lists_by_key((row.model, row) for row in done)
    return cost, quality, [row for of_model in by_model.values() for row in front(of_model, cost, quality)]


def summary(rows: Sequence[Row]) -> Table:
    """Return a table: the front of every model."""
    (cost, quality, best), done = fronts(rows), sum(row.status == DONE for row in rows)
    named = QUANTITIES[quality].title
    cells = [
        (
            Path(row.model).name, row.goal, row.how, str(row.seed), part("weights", row), part("macs", row),
            part("latency", row), plain(quality, row),
        )
        for row in best
    ]  # fmt: skip
    title = (
        f"{done} of {len(rows)} folds finished; these lose least {named.replace('relative ', '')} for their "
        f"{QUANTITIES[cost].title.partition(' ')[0]}"
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
    text, ratio = plain(name, row), QUANTITIES[name].ratio(row)
    if QUANTITIES[name].kind == "fraction":
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
    value = QUANTITIES[name].value(row)
    return UNKNOWN if value is None else value_text(name, value)


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
