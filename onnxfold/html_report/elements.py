"""HTML and SVG elements; the standard library's tree escapes their text."""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from xml.etree import ElementTree

from onnxfold.printable import printable

Element = ElementTree.Element
#: What may stand in an element.
Content = Element | str | None

_LONGEST_LIST = 40


def element(tag: str, *children: Content, **attributes: str | float) -> Element:
    """Return an element."""
    names = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    # Style sheets and scripts are ours, and nothing in them is escaped.
    shown = str if tag in ("style", "script") else printable
    made = Element(tag, {key: printable(v) if isinstance(v, str) else f"{v:g}" for key, v in names.items()})
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            made.append(child)
            last = child
        elif child is not None and last is None:
            made.text = (made.text or "") + shown(child)
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + shown(child)
    return made


def breakable(name: str) -> Element:
    """Return a name with preferred line breaks after its separators."""
    parts = re.split(r"(?<=[/._:])(?=[^/._:])", name)
    return element("span", parts[0], *(piece for part in parts[1:] for piece in (element("wbr"), part)))


def serialise(root: Element) -> str:
    """Return an element as text; SVG stands in HTML as it is."""
    return ElementTree.tostring(root, encoding="unicode", method="html")


def page(title: str, *body: Content, style: str = "", policy: str = "") -> str:
    """Return a whole page, with a style beside the common one; it fetches nothing but what the policy allows."""
    common = resources.files("onnxfold.html_report").joinpath("style.css").read_text(encoding="utf-8")
    allowed = f"default-src 'none'; style-src 'unsafe-inline'{policy and f'; {policy}'}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=allowed),
        element("title", title),
        element("style", common + style),
    )
    return f"<!DOCTYPE html>\n{serialise(element('html', head, element('body', *body), lang='en'))}\n"


def section(name: str, title: str, *body: Content) -> Element:
    """Return a section with its heading."""
    return element("section", element("h2", title, id=f"{name}-title"), *body, id=name, aria_labelledby=f"{name}-title")


def table(caption: str, header: Sequence[Content], rows: Iterable[Sequence[Content]], class_: str = "") -> Element:
    """Return a table whose first column names the rows; longer ones end in a part that opens on demand."""
    made = [
        element("tr", element("th", cells[0], scope="row"), *(element("td", cell) for cell in cells[1:]))
        for cells in rows
    ]

    def part(body: Sequence[Element], more: str = "") -> Element:
        head = element("thead", element("tr", *(element("th", cell, scope="col") for cell in header)))
        return element("table", element("caption", caption + more), head, element("tbody", *body), class_=class_)

    return _shorten(made, part(made[:_LONGEST_LIST]), lambda rest: part(rest, ", continued"))


def grid(items: Sequence[Element]) -> Element:
    """Return small charts side by side; many end in a part that opens on demand."""

    def part(shown: Sequence[Element]) -> Element:
        return element("div", *shown, class_="grid")

    return _shorten(items, part(items[:_LONGEST_LIST]), part)


def _shorten(items: Sequence[Element], shown: Element, part: Callable[[Sequence[Element]], Element]) -> Element:
    rest = items[_LONGEST_LIST:]
    if not rest:
        return shown
    return element("div", shown, element("details", element("summary", f"{len(rest)} more"), part(rest)))
