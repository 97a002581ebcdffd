"""The page: its title with the verdict, and its sections. A section without content says why it is empty."""

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from onnxfold.html_report import charts
from onnxfold.html_report.command_line import command_line
from onnxfold.html_report.elements import Content, Element, breakable, element, grid, page, section, table
from onnxfold.html_report.numbers import UNKNOWN, cost_cells, decimal, interval, percent, plural, whole
from onnxfold.report import FoldReport
from onnxfold.report.fold_report import ONLY_DUPLICATES, GroupRecord
from onnxfold.report.records import Diagnostics


@dataclass(frozen=True)
class Section:
    """One section."""

    name: str
    title: str
    content: Callable[[FoldReport], list[Element]]  # takes a report, returns what stands in the section
    explained: str  # what its words mean, for a reader who does not know them


def _numbers(report: FoldReport) -> list[Element]:
    beside_one = report.merged.beside_one if report.merged is not None else ""
    records = (report.refinement, report.quantization, report.latency, beside_one or None)
    below = [f"{text[0].upper()}{text[1:]}." for text in (str(r) for r in records if r is not None)]
    costs = table("Costs of the model", ("", "Before", "After", "Removed"), cost_cells(report), "figures")
    frame = element("div", costs, class_="scroll", tabindex="0", role="region", aria_label="Costs")
    return [frame, *(element("p", line, class_="muted") for line in below)]


def _fidelity(report: FoldReport) -> list[Element]:
    fidelity = report.fidelity
    judged = [] if report.accuracy is None else [element("p", f"Labelled samples: {report.accuracy}.")]
    if fidelity is None:
        return [*judged, element("p", f"The fidelity was not measured: {report.verdict.kept}.")]
    rows: list[tuple[Content, ...]] = [
        (breakable(f.output), decimal(f.relative_error),
         "" if f.top1_agreement is None else percent(f.top1_agreement),
         "" if f.top1_interval is None else interval(*f.top1_interval),
         *([", ".join(f.measures)] if any(other.measures for other in fidelity.outputs) else []))
        for f in fidelity.outputs
    ]  # fmt: skip
    caption = f"Folded against original, {plural(fidelity.samples, 'sample')} of {fidelity.inputs}"
    head = ("Output", "Relative error", "Top-1 agreement", "95 % confidence interval", "Other measures")
    line = report.estimate_line
    estimate = [element("p", f"{line[0].upper()}{line[1:]}.")] if line else []
    more = [element("p", f"{text[0].upper()}{text[1:]}.") for text in fidelity.lines]
    return [table(caption, head[: len(rows[0])] if rows else head, rows, "figures"), *more, *estimate, *judged]


def _inputs(report: FoldReport) -> list[Element]:
    if report.inputs is None:
        return [element("p", "The network was not run: this fold works from the weights alone.")]
    used = report.inputs
    parts = [element("p", element("strong", f"{plural(used.samples, 'sample')} of {used.kind}"), f": {used.reason}.")]
    if report.picture:
        source = f"data:image/png;base64,{base64.b64encode(report.picture).decode()}"
        parts.append(element("img", src=source, alt="Some of these images", class_="images"))
    return parts


def _widths(report: FoldReport) -> list[Element]:
    if not report.groups:
        return [element("p", "The model has no fold groups.")]
    widest = max(group.width for group in report.groups)
    folded = sum(group.folded_width < group.width for group in report.groups)
    rows = [
        (element("span", f"g{i} ", breakable(g.name)), charts.width_bar(g.width, g.folded_width, widest), _change(g))
        for i, g in enumerate(report.groups, 1)
    ]
    caption = f"{folded} of {plural(len(report.groups), 'group')} folded; pale: before, strong: after"
    if report.cluster:
        caption += f"; cluster {report.cluster}, repair {report.repair}, unless a group states another"
    return [table(caption, ("Group", "Width", "Channels"), rows, "pictures")]


def _change(group: GroupRecord) -> Element:
    text = f"{group.width} \u2192 {group.folded_width}" if group.folded_width < group.width else f"{group.width}"
    more = [plural(group.duplicates, "duplicate")] if group.duplicates else []
    if group.cluster == ONLY_DUPLICATES:
        more.append("nothing else merged")
    elif group.fell_back:
        more.append(f"{group.cluster}, {group.repair}")
    return element("span", text, *(element("small", words) for words in more))


def _refusals(report: FoldReport) -> list[Element]:
    if not report.refusals:
        return [element("p", "Every weight axis can be folded.")]
    rows: list[tuple[Content, ...]] = [
        (
            whole(r.weights),
            element("span", element("strong", f"{r.op_type} ", breakable(r.node)), f", {r.axis}: {r.reason}"),
        )
        for r in report.refusals
    ]
    return [table("Weight axes that kept their width, with reasons", ("Weights", "Where and why"), rows, "held")]


def _passes(report: FoldReport) -> list[Element]:
    if not report.passes:
        return [element("p", "None were recorded.")]
    cells = [(r.name, f"{1e3 * r.seconds:,.1f}", "" if r.modified else "no") for r in report.passes]
    return [table("In their order", ("Pass", "Milliseconds", "Changed the graph"), cells, "figures")]


def _reproduce(report: FoldReport) -> list[Element]:
    parts = [element("pre", element("code", command_line(report)))]
    if "arrays" in (report.config.get("calibration"), report.config.get("data")):
        parts.append(element("p", "FILE.npz stands for the given arrays.", class_="muted"))
    versions = {"onnxfold": report.version or UNKNOWN, **report.versions}
    rows: list[tuple[Content, ...]] = list(versions.items())
    if report.model_sha256:
        rows.append(("SHA-256 of the model's file", element("code", report.model_sha256)))
    parts.append(table("What it was made with", ("", ""), rows, "facts"))
    return parts


def error_curves(diagnostics: Diagnostics) -> list[Element]:
    """Show the error of every group at every width."""
    if not diagnostics.error_curves:
        return [element("p", "None: the widths were not chosen by error curves.")]
    curves = [curve for curve in diagnostics.error_curves if any(map(math.isfinite, curve.errors))]
    scale = charts.error_scale(curves)
    figures = [
        _figure(charts.error_chart(c, scale), c.group, element("span", f"width {c.width}, error {decimal(c.error)}"))
        for c in curves
    ]
    left_out = [curve.group for curve in diagnostics.error_curves if curve not in curves]
    return _charts((("curve", "error"), ("chosen", "chosen width")), figures, "No error is known", left_out)


def variance_ratios(diagnostics: Diagnostics) -> list[Element]:
    """Show how the variances of all layers changed."""
    ratios = diagnostics.variance_ratios
    if not ratios:
        return [_missing(diagnostics)]
    span = charts.variance_span(ratios)
    scale = element("span", *(element("span", decimal(v)) for v in (1 / span, 1.0, span)), class_="scale")
    rows = [
        (
            breakable(r.layer),
            charts.variance_mark(r, span) if math.isfinite(r.mean) else "no channel to compare",
            element("span", decimal(r.mean), element("small", f"{r.left_out} left out") if r.left_out else None),
        )
        for r in ratios
    ]
    caption = (
        f"On {plural(diagnostics.samples, 'sample')}; logarithmic. Channels that the fold dropped, "
        "or that are constant, are left out."
    )
    return [
        key(("dot", "mean over the channels"), ("range", "quartiles"), ("healthy", "1")),
        table(caption, ("Layer", scale, "Mean"), rows, "pictures"),
    ]


def correlations(diagnostics: Diagnostics) -> list[Element]:
    """Show how much the channels of every group say the same."""
    if not diagnostics.correlations:
        return [_missing(diagnostics)]
    figures = [_figure(charts.correlation_chart(h), h.group) for h in diagnostics.correlations if any(h.before)]
    left_out = [histogram.group for histogram in diagnostics.correlations if not any(histogram.before)]
    marks = ("before", "before"), ("curve", "after")
    return _charts(marks, figures, "There are no pairs of channels that vary", left_out)


def _figure(chart: Element, group: str, *more: Element) -> Element:
    return element("figure", chart, element("figcaption", breakable(group), *more))


def _charts(
    marks: Sequence[tuple[str, str]], figures: Sequence[Element], why_not: str, left_out: Sequence[str]
) -> list[Element]:
    """Return charts of groups with their key, and a line in place of those that would be empty."""
    line = [element("p", f"{why_not}: {', '.join(left_out)}.", class_="muted")] if left_out else []
    return [key(*marks), grid(figures), *line] if figures else line


def _missing(diagnostics: Diagnostics) -> Element:
    return element("p", f"Not measured: {diagnostics.not_run or 'no layer was found'}.")


def key(*entries: tuple[str, str]) -> Element:
    """Return the key of a chart, from pairs of a mark's class and its text."""
    return element(
        "ul",
        *(element("li", element("svg", _mark(kind), aria_hidden="true"), text) for kind, text in entries),
        class_="key",
    )


def _mark(kind: str) -> Element:
    if kind in ("before", "after"):
        return element("rect", width="100%", height="100%", class_=kind)
    if kind == "dot":
        return element("circle", cx="50%", cy="50%", r=4, class_=kind)
    return element("line", x1="0", x2="100%", y1="50%", y2="50%", class_=kind)


SECTIONS = (
    Section(
        "numbers", "Before and after", _numbers,
        "Parameters are the weights that an output depends on. MACs are multiply-accumulates, the products that one "
        "sample takes. Sparsity is the part of the weights that is gone.",
    ),
    Section(
        "fidelity", "Fidelity", _fidelity,
        "Both networks answer the same inputs. Relative error: the distance of their outputs, in parts of the "
        "original's. Top-1 agreement: how often both name the same class, or token, first. The interval holds the "
        "true agreement on such inputs with the stated confidence. Generated images are harder than data: agreement "
        "on data is usually higher, and the estimate is about data.",
    ),
    Section(
        "inputs", "Inputs", _inputs,
        "What the network was run on, to see which channels say the same and to refit the layers behind them.",
    ),
    Section(
        "widths", "Widths", _widths,
        "Channels of a fold group are added or passed on together, so they can only go together. Duplicates are "
        "channels that are exact copies. The cluster says how channels were chosen or merged, the repair how the "
        "layers that read them were corrected.",
    ),
    Section(
        "errors", "Error curves", lambda report: error_curves(report.diagnostics),
        "How much the results of the layers that read a group would change if the group had fewer channels, in parts "
        "of what they are. Widths are chosen where these errors are small. All charts have the same scale; every line "
        "is ten times the one below.",
    ),
    Section(
        "variances", "Variance ratios", lambda report: variance_ratios(report.diagnostics),
        "Variance of the folded network's channels, divided by that of the channels that they replace. Near 1 is "
        "healthy, below 1 activations collapse, above 1 they overshoot.",
    ),
    Section(
        "correlations", "Correlations", lambda report: correlations(report.diagnostics),
        "Correlations between all pairs of a group's channels, as its first consumer sees them: near 1 or \u22121 two "
        "channels say the same, near 0 they say different things.",
    ),
    Section(
        "refusals", "Left alone", _refusals,
        "Axes of weights that kept their length, and why: the shapes of outputs must stay, and an operator may mix "
        "channels.",
    ),
    Section("passes", "Passes", _passes, "Steps of the fold that edit the graph, in their order."),
    Section(
        "reproduce", "Reproduce", _reproduce,
        "The same file, command, versions and kind of processor give the same bytes.",
    ),
)  # fmt: skip


def render_html(report: FoldReport) -> str:
    """Return a report as one page that needs no other file and no network."""
    sections = [
        section(s.name, s.title, element("p", s.explained, class_="explained"), *s.content(report)) for s in SECTIONS
    ]
    contents = element("ul", *(element("li", element("a", s.title, href=f"#{s.name}")) for s in SECTIONS))
    nav = element("nav", contents, aria_label="Sections")
    versions = [f"onnxfold {report.version or UNKNOWN}", *(f"{name} {v}" for name, v in report.versions.items())]
    footer = element("footer", f"{', '.join(versions)}; folded in {report.seconds:.1f} s.")
    body = _header(report, nav), element("main", *sections), footer
    return page(f"{_name(report)}: fold report", *body, policy="img-src data:")


def _name(report: FoldReport) -> str:
    # Reports travel between systems: both separators count.
    return PurePath(report.model.replace("\\", "/")).name or "model"


def _header(report: FoldReport, nav: Element) -> Element:
    way = ", ".join(
        [report.method]
        + [f"{what} {name}" for what, name in (("cluster", report.cluster), ("repair", report.repair)) if name]
        + [f"{report.allocation} allocation"]
    )
    notes = [*([report.warning] if report.warning else []), *report.notes]
    return element(
        "header",
        element("h1", f"Fold of {_name(report)}"),
        element("p", element("strong", f"{report.verdict}."), class_="verdict"),
        element("p", f"{report.requested}: {way}", class_="muted"),
        element("ul", *(element("li", note) for note in notes), class_="notes") if notes else None,
        nav,
    )
