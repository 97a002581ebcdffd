"""The page: its head, its title with the main numbers, its sections."""

from pathlib import PurePath

from onnxfold.html_report.elements import Element, element, page, section
from onnxfold.html_report.numbers import UNKNOWN, decimal, interval, percent, plural, removed, short
from onnxfold.html_report.sections import SECTIONS
from onnxfold.report import FoldReport, milliseconds


def render_html(report: FoldReport) -> str:
    """Return a report as one page that needs no other file and no network."""
    sections = [
        section(s.name, s.title, element("p", s.explained, class_="explained") if s.explained else None,
                *s.content(report))
        for s in SECTIONS
    ]  # fmt: skip
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
        None if report.verdict is None else element("p", element("strong", f"{report.verdict}."), class_="verdict"),
        element("p", f"{report.requested}: {way}", class_="muted"),
        element("dl", *_tiles(report), class_="tiles"),
        element("ul", *(element("li", note) for note in notes), class_="notes") if notes else None,
        nav,
    )


def _tiles(report: FoldReport) -> list[Element]:
    before, after = report.before, report.after
    tiles = [
        _tile("Weights removed", percent(report.sparsity), _change(before.parameters, after.parameters)),
        _tile(f"{before.macs_title} removed", removed(before.macs, after.macs) or UNKNOWN,
              _change(before.macs, after.macs)),
        _tile("Size", f"{short(after.size_bytes)}B", f"{short(before.size_bytes)}B before"),
    ]  # fmt: skip
    fidelity = report.fidelity
    if fidelity is not None and fidelity.outputs:
        first, on = fidelity.outputs[0], f"{plural(fidelity.samples, 'sample')} of {fidelity.inputs}"
        if first.top1_agreement is not None:
            bounds = f"; 95 % confidence interval {interval(*first.top1_interval)}" if first.top1_interval else ""
            tiles.append(_tile("Same answer", percent(first.top1_agreement), f"on {on}{bounds}"))
        else:
            tiles.append(_tile("Relative error", decimal(first.relative_error), f"of the first output, on {on}"))
    if report.estimate is not None:
        bounds = f"estimated agreement; 80 % interval {interval(*report.estimate.interval)}"
        tiles.append(_tile("Same answer on data", percent(report.estimate.agreement), bounds))
    if report.accuracy is not None:
        judged = report.accuracy
        held_out = f"{percent(judged.before)} before; {plural(judged.samples, 'held-out sample')}"
        tiles.append(_tile("Accuracy", percent(judged.after), held_out))
    if report.latency is not None and report.latency.is_sure:
        timed = report.latency
        change = f"{milliseconds(timed.before_s)} \u2192 {milliseconds(timed.after_s)} ms, {timed.how}"
        tiles.append(_tile("Time", f"{timed.ratio:.2f} \u00d7", change))
    return tiles


def _change(before: float | None, after: float | None) -> str:
    return f"{short(before)} \u2192 {short(after)}"


def _tile(term: str, value: str, more: str) -> Element:
    return element("div", element("dt", term), element("dd", value, element("small", more)))
