"""Results of a sweep as one page that fetches nothing: errors against costs, with the front and the commands."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from onnxfold.channels.group import lists_by_key
from onnxfold.files import open_regular
from onnxfold.html_report.elements import Content, Element, breakable, element, page, section, table
from onnxfold.html_report.numbers import UNKNOWN, plural
from onnxfold.printable import printable
from onnxfold.sweeps.answers.pick import fronts, part, plain, value_text
from onnxfold.sweeps.row import COSTS, DONE, QUALITIES, QUANTITIES, Quantity, Row

#: Values of a model that is compared with itself; what is lacking there is nothing.
_SAME = {"agreement": 1.0, "estimated_agreement": 1.0, "relative_error": 0.0}


#: What the pages of sweeps are known by.
_TITLE = "Sweep of folds"
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class ChartAxis:
    """An axis of a chart: a quantity, its part of the value before the fold, or what a quality lacks to 1."""

    key: str  # its names, for the script and for people
    title: str
    quantity: Quantity
    is_part: bool = False  # whether it is such a part, or what lacks
    is_lack: bool = False

    def value(self, row: Row) -> float | None:
        """Return the value in a row; None where it is unknown."""
        amount = self.quantity.ratio(row) if self.is_part else self.quantity.value(row)
        return 1.0 - amount if amount is not None and self.is_lack else amount

    def original(self, rows: Sequence[Row]) -> float | None:
        """Return the value of the model that some folds were made of; None where it is unknown."""
        if self.is_part:
            return 1.0
        if self.quantity.column in _SAME:
            return _SAME[self.quantity.column] - self.is_lack
        before = next((value for value in map(self.quantity.before, rows) if value is not None), None)
        return 1.0 - before if before is not None and self.is_lack else before

    def to_dict(self) -> dict[str, object]:
        """Return the key, the title and the unit, as the script reads them."""
        return {"key": self.key, "title": self.title, "percent": self.is_part or self.is_lack}


_AMOUNTS = {name: ChartAxis(name, QUANTITIES[name].title, QUANTITIES[name]) for name in (*COSTS, *QUALITIES)}
_COSTS = [
    *(_AMOUNTS[name] for name in COSTS),
    *(ChartAxis(f"{name}_part", f"{name}, part of before", QUANTITIES[name], is_part=True) for name in COSTS),
]
_ERRORS = [
    ChartAxis(name, f"1 \u2212 {QUANTITIES[name].title}", QUANTITIES[name], is_lack=True)
    if QUANTITIES[name].more_is_better
    else _AMOUNTS[name]
    for name in QUALITIES
]


def render_page(rows: Sequence[Row], picked: Row | None = None) -> str:
    """Return the page of a sweep."""
    done = [row for row in rows if row.status == DONE]
    costs, errors = _known(_COSTS, done), _known(_ERRORS, done)
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return page(
        _TITLE,
        _header(rows, done),
        element("main", *_chart(done, costs, errors, picked), *_tables(rows, done, picked)),
        _footer(rows),
        element("script", script) if costs and errors else None,
        style="\n" + _resource("page.css"), policy=f"script-src 'sha256-{digest}'",
    )  # fmt: skip


def is_page(path: Path) -> bool:
    """Whether a file is the page of a sweep."""
    with open_regular(path) as file:
        return f"<title>{_TITLE}</title>".encode() in file.read(_HEAD_BYTES)


def _known(axes: Sequence[ChartAxis], rows: Sequence[Row]) -> list[ChartAxis]:
    return [axis for axis in axes if any(axis.value(row) is not None for row in rows)]


def _resource(name: str) -> str:
    return resources.files("onnxfold.sweeps").joinpath(name).read_text(encoding="utf-8")


def _header(rows: Sequence[Row], done: Sequence[Row]) -> Element:
    models = dict.fromkeys(row.model for row in rows)
    what = f"{plural(len(done), 'fold')} of {plural(len(models), 'model')}"
    failed = len(rows) - len(done)
    return element(
        "header",
        element("h1", f"Sweep: {what}"),
        element("p", f"{failed} more failed, see below.", class_="muted") if failed else None,
    )


def _chart(
    rows: Sequence[Row], costs: Sequence[ChartAxis], errors: Sequence[ChartAxis], picked: Row | None
) -> list[Element]:
    """Return the controls, the place of the chart, and the data that the script draws."""
    if not costs or not errors:
        return [element("p", "Nothing can be drawn: no fold has both a cost and an error.")]
    by_model = lists_by_key((row.model, row) for row in rows)
    controls = element(
        "div",
        _select("x", "Cost", [(axis.key, axis.title) for axis in costs]),
        _select("y", "Error", [(axis.key, axis.title) for axis in errors]),
        _select("model", "Model", [("", "all"), *((str(i), name) for i, name in enumerate(by_model))]),
        class_="controls",
    )
    hint = "Point at a fold, or choose it, to see its command. Lines join those that no other fold of the model beats."
    axes = [*costs, *errors]
    data = {
        "axes": [axis.to_dict() for axis in costs], "errors": [axis.to_dict() for axis in errors],
        "models": [printable(name) for name in by_model], "methods": list(dict.fromkeys(row.how for row in rows)),
        "rows": [
            {"model": printable(row.model), "method": row.how,
             "name": printable(f"{row.model}, {row.goal}, {row.how}, seed {row.seed}"),
             "command": printable(row.command or ""), "verdict": printable(row.verdict or ""),
             "values": {axis.key: axis.value(row) for axis in axes},
             **({"picked": True} if row == picked else {})}
            for row in rows
        ],
        "originals": [
            {"model": printable(name), "values": {axis.key: axis.original(of_model) for axis in axes}}
            for name, of_model in by_model.items()
        ],
    }  # fmt: skip
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")  # nothing in it ends the element
    return [
        element(
            "section",
            element("h2", "Error by cost", id="chart-title"),
            controls,
            element("div", element("noscript", "The chart needs JavaScript; the table below does not."), id="chart"),
            element("ul", id="legend"),
            element("div", element("p", hint, class_="muted"), id="chosen", aria_live="polite"),
            element("script", text, type="application/json", id="data"),
            id="errors", aria_labelledby="chart-title",
        )
    ]  # fmt: skip


def _select(name: str, title: str, options: Sequence[tuple[str, str]]) -> Element:
    made = [element("option", shown_as, value=value) for value, shown_as in options]
    return element("label", title, element("select", *made, id=name))


def _tables(rows: Sequence[Row], done: Sequence[Row], picked: Row | None) -> list[Element]:
    made = []
    if done:
        cost, quality, best = fronts(done)
        cells: list[list[Content]] = [
            [_fold(row), part("weights", row), part("latency", row), plain(quality, row)] for row in best
        ]
        title = QUANTITIES[quality].title
        caption = f"Folds of each model that no other one beats in {QUANTITIES[cost].title} and {title}."
        head = ("Fold", "Weights", "Latency", title.capitalize())
        commands = [element("pre", element("code", row.command or "")) for row in best]
        made.append(section("front", "The front", table(caption, head, cells, "figures"), *commands))
        made.append(section("all", "All folds", element("div", _all_folds(done, picked), class_="scroll")))
    failed = [row for row in rows if row.status != DONE]
    if failed:
        reasons: list[list[Content]] = [[_fold(row), f"{row.error_type}: {row.error}"] for row in failed]
        made.append(section("failed", "Failed", table("Folds without a result.", ("Fold", "Why"), reasons)))
    return made


def _all_folds(rows: Sequence[Row], picked: Row | None) -> Element:
    """Return a table of every fold, and of the models before, which the script sorts."""
    axes = _known(list(_AMOUNTS.values()), rows)
    lines = []
    for model, of_model in lists_by_key((row.model, row) for row in rows).items():
        values = [axis.original(of_model) for axis in axes]
        label = _label(breakable(f"{_file_name(model)}, before"))
        lines.append(element("tr", label, *map(_number, axes, values), class_="before"))
        for row in of_model:
            mark = element("strong", "picked: ") if row == picked else None
            cells = map(_number, axes, [axis.value(row) for axis in axes])
            lines.append(element("tr", _label(mark, _fold(row)), *cells, class_="" if mark is None else "picked"))
    head = element("tr", *(element("th", title, scope="col") for title in ("Fold", *(axis.title for axis in axes))))
    caption = element("caption", "Every fold, and the models before.")
    return element("table", caption, element("thead", head), element("tbody", *lines), class_="figures", id="all-folds")


def _label(*name: Content) -> Element:
    return element("th", *name, scope="row")


def _number(axis: ChartAxis, value: float | None) -> Element:
    known = {} if value is None else {"data_value": repr(value)}
    return element("td", UNKNOWN if value is None else value_text(axis.key, value), **known)


def _fold(row: Row) -> Element:
    return breakable(f"{_file_name(row.model)}, {row.goal}, {row.how}, seed {row.seed}")


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _footer(rows: Sequence[Row]) -> Element:
    seen = dict.fromkeys(pair for row in rows for pair in json.loads(row.versions).items())
    by_library = lists_by_key((name, version) for name, version in seen if version and name != "code")
    hosts = dict.fromkeys(row.latency_host for row in rows if row.latency_host and row.latency_ms)
    said = ", ".join(f"{name} {' and '.join(known)}" for name, known in by_library.items())
    return element("footer", f"{said or UNKNOWN}.", f" Latencies: {'; '.join(hosts)}." if hosts else None)
