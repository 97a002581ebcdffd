"""Rows of a device table, each with the method that obtained it: as tables, and as a self-contained HTML page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxfold._version import __version__
from onnxfold.html_report.charts import range_mark
from onnxfold.html_report.elements import Element, breakable, element, page, table
from onnxfold.report import milliseconds
from onnxfold.terminal import Table

#: How a latency was obtained, and what that means; every row carries one of these, and tables print it.
METHODS = {
    "measured-device": "measured on the device",
    "emulated-instructions": "instructions counted in an emulator, which does not model the device's time",
    "estimated-latency": "estimated: counted instructions x assumed cycles per instruction / clock; a range",
    "paper-reported": "as published",
}


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """The subject of a row, how its figures were obtained, and what became of it."""

    model: str  # name of the model's file
    device: str  # name of the profile, or 'host'
    method: str  # one of METHODS
    status: str = "ok"  # else 'does-not-fit', 'unavailable' or 'failed', without a latency or an instruction count
    reason: str = ""  # why there is no latency, and what to do about it; one line


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model was run."""

    runtime: str = ""  # inference runtime and its version
    threads: int = 1
    clock_hz: int | None = None  # of the processor while it was measured, or that an estimate is for
    toolchain: str = ""  # compiler and version, and its flags, where code was compiled
    flags: str = ""
    warm_up: int = 0  # inferences before, and in, the measurement
    repeats: int = 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Time and memory that a model takes."""

    latency_s: float | None = None  # median, per inference
    latency_low_s: float | None = None  # quartiles of a measurement, ends of the range of an estimate
    latency_high_s: float | None = None
    instructions: int | None = None  # per inference, where they were counted
    ram_bytes: int | None = None
    flash_bytes: int | None = None
    memory: str = ""  # how the bytes were obtained, in words


@dataclass(frozen=True, kw_only=True)
class BenchResult(Figures, Setup, BenchRow):  # fields in JSON are in the order of the last class first
    """A model on a device."""

    #: Largest difference to onnxruntime over the largest reference value; None where outputs were not compared.
    max_relative_error: float | None = None
    compared_inputs: int = 0
    basis: str = ""  # what a latency rests on, in words
    details: Mapping[str, Any] = field(default_factory=dict)  # everything else, as plain values

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return asdict(self)


COLUMNS = ("model", "device", "how", "runtime", "latency", "instr.", "RAM", "flash", "error")
_LEFT = ("model", "device", "how", "runtime")
_NARROW = ("device", "instr.", "RAM", "flash", "error")


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
        return row.status.replace("-", " ")
    ends = [milliseconds(end) for end in (row.latency_low_s, row.latency_high_s) if end is not None]
    if row.latency_s is None:
        return f"{' to '.join(ends)} ms" if ends else ""
    return f"{milliseconds(row.latency_s)} ms ({'-'.join(ends)})" if ends else f"{milliseconds(row.latency_s)} ms"


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


_STYLE = "header, main, footer { max-width: 76rem; } .figures th { white-space: nowrap; } "
_STYLE += "svg.mark { min-width: 12rem; height: 1.4rem; }"


def render_html(rows: Sequence[BenchResult]) -> str:
    """Return rows as one page with all figures, and a picture of every latency; it fetches nothing."""
    methods = dict.fromkeys(row.method for row in rows)
    key = element("ul", *(element("li", f"{m}: {METHODS[m]}") for m in methods), class_="notes")
    ends = [end for row in rows for end in _range(row)]
    low = 10.0 ** math.floor(math.log10(min(ends, default=1.0)))
    high = max(10.0 ** math.ceil(math.log10(max(ends, default=1.0))), 10 * low)
    drawn = f"latencies from {low * 1e3:g} to {high * 1e3:g} ms, logarithmic" if ends else "no latency known"
    cells_of = ([breakable(row.model), _mark(row, low, high), *cells(row)[1:]] for row in rows)
    figures = table(f"K = 1024 bytes, M = 1024 K; {drawn}", (COLUMNS[0], "", *COLUMNS[1:]), cells_of, "figures")
    frame = element(
        "div", figures, class_="scroll", tabindex="0", role="region", aria_label="All figures, side by side"
    )
    said = element("ul", *(element("li", line) for line in notes(rows)))
    body = element("header", element("h1", "Benchmark"), key), element("main", frame, said)
    return page("onnxfold bench", *body, element("footer", f"onnxfold {__version__}"), style=_STYLE)


def _range(row: BenchResult) -> list[float]:
    """Return the times that are drawn, ascending; none for a row without latency."""
    known = (row.latency_low_s, row.latency_s, row.latency_high_s) if row.status == "ok" else ()
    return sorted(time for time in known if time)


def _mark(row: BenchResult, low: float, high: float) -> Element | None:
    """Return a latency as a dot on its range, between two times; logarithmic."""
    times = _range(row)
    if not times:
        return None

    def place(seconds: float) -> str:
        return f"{100 * math.log(seconds / low) / math.log(high / low):.2f}%"

    ground = element("line", x1="0", x2="100%", y1="50%", y2="50%", class_="grid-line")
    middle = place(row.latency_s) if row.latency_s else None
    title = f"{row.model} on {row.device}: {latency_text(row)}"
    return range_mark(title, ground, place(times[0]), middle, place(times[-1]))
