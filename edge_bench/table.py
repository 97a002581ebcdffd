"""Tables of benchmark rows, with the same cells in the terminal, in Markdown, and in charts."""

from collections.abc import Iterable, Sequence

from onnxfold.edge_bench.result import BenchResult
from onnxfold.terminal import Table

COLUMNS = ("model", "device", "how", "runtime", "latency", "instr.", "RAM", "flash", "error")
_LEFT = ("model", "device", "how", "runtime")
_NARROW = ("device", "instr.", "RAM", "flash", "error")
_STATUS = {"does-not-fit": "does not fit", "unavailable": "unavailable", "failed": "failed"}


def cells(row: BenchResult) -> tuple[str, ...]:
    """Return a row's cells in the order of :data:`COLUMNS`."""
    error = "" if row.max_relative_error is None else f"{row.max_relative_error:.1g}"
    runtime = f"{row.runtime}, {row.threads} threads" if row.threads > 1 and row.runtime else row.runtime
    instructions = "" if row.instructions is None else f"{row.instructions / 1e6:.3g} M"
    memory = (bytes_text(row.ram_bytes), bytes_text(row.flash_bytes))
    return (row.model, row.device, row.method, runtime, latency_text(row), instructions, *memory, error)


def latency_text(row: BenchResult) -> str:
    """Return a latency with its range, or what became of the row."""
    if row.status != "ok":
        return _STATUS[row.status]
    if row.latency_s is None:
        if row.latency_low_s is None or row.latency_high_s is None:
            return ""
        return f"{_ms(row.latency_low_s)} to {_ms(row.latency_high_s)} ms"
    if row.latency_low_s is None or row.latency_high_s is None:
        return f"{_ms(row.latency_s)} ms"
    return f"{_ms(row.latency_s)} ms ({_ms(row.latency_low_s)}-{_ms(row.latency_high_s)})"


def bytes_text(count: int | None) -> str:
    """Return bytes with K = 1024, M = 1024 K."""
    if count is None:
        return ""
    if count < 1024**2:
        return f"{count / 1024:.1f} K"
    return f"{count / 1024**2:.2f} M"


def notes(rows: Sequence[BenchResult]) -> list[str]:
    """Return in lines what does not go into cells: reasons, what numbers rest on, how memory was obtained."""
    lines = [f"{row.model} on {row.device}: {row.reason}" for row in rows if row.reason]
    based = [r for r in rows if r.status == "ok" and r.basis not in ("", "measured")]
    lines += _group_lines((row.basis, f"{row.method} on {row.device}", row.model) for row in based)
    lines += _group_lines((row.memory, f"memory of {row.method}", row.device) for row in rows if row.memory)
    return lines


def _group_lines(said: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return a line for every text and what it is about, with those of whom it is said."""
    groups: dict[tuple[str, str], dict[str, None]] = {}
    for text, about, whom in said:
        groups.setdefault((text, about), {})[whom] = None
    return [f"{about}, {', '.join(whom)}: {text}" for (text, about), whom in groups.items()]


def tables(rows: Sequence[BenchResult]) -> list[Table]:
    """Return a table per model for the terminal."""
    made = []
    for model in dict.fromkeys(row.model for row in rows):
        own = [cells(row)[1:] for row in rows if row.model == model]
        lines = [(device, how.replace("-", " "), *others) for device, how, *others in own]
        title = f"{model}: median latency (quartiles), or the range of an estimate"
        made.append(Table(title, COLUMNS[1:], lines, left=_LEFT, narrow=_NARROW))
    return made


def markdown(rows: Sequence[BenchResult], columns: Sequence[str] = COLUMNS) -> list[str]:
    """Return the lines of a Markdown table with some of the columns."""
    places = [COLUMNS.index(c) for c in columns]
    lines = [f"| {' | '.join(columns)} |", "|" + "|".join("---" if c in _LEFT else "---:" for c in columns) + "|"]
    lines += [f"| {' | '.join(cells(row)[p].replace('|', chr(92) + '|') for p in places)} |" for row in rows]
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:,.0f}"
