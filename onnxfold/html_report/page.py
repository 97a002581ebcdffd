"""The page: its head, its title with the verdict, its sections."""

from pathlib import PurePath

from onnxfold.html_report.elements import Element, element, page, section
from onnxfold.html_report.numbers import UNKNOWN
from onnxfold.html_report.sections import SECTIONS
from onnxfold.report import FoldReport


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
        element("ul", *(element("li", note) for note in notes), class_="notes") if notes else None,
        nav,
    )
