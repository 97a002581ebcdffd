"""HTML and SVG elements; the standard library's tree escapes their text."""

import re
from collections.abc import Iterable, Sequence
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
    made = Element(tag, {key: value if isinstance(value, str) else f"{value:g}" for key, value in names.items()})
    for key, value in made.attrib.items():
        made.set(key, printable(value))
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
    text: str = ElementTree.tostring(root, encoding="unicode", method="html")
    return text


def table(caption: str, header: Sequence[Content], rows: Iterable[Sequence[Content]], class_: str = "") -> Element:
    """Return a table whose first column names the rows; longer ones end in a part that opens on demand."""
    made = [
        element("tr", element("th", cells[0], scope="row"), *(element("td", cell) for cell in cells[1:]))
        for cells in rows
    ]

    def part(body: Sequence[Element], title: str) -> Element:
        head = element("thead", element("tr", *(element("th", cell, scope="col") for cell in header)))
        return element("table", element("caption", title), head, element("tbody", *body), class_=class_)

    shown = part(made[:_LONGEST_LIST], caption)
    rest = made[_LONGEST_LIST:]
    if not rest:
        return shown
    return element("div", shown, details(f"{len(rest)} more", part(rest, f"{caption}, continued")))


def grid(items: Sequence[Element]) -> Element:
    """Return small charts side by side; many end in a part that opens on demand."""
    shown = element("div", *items[:_LONGEST_LIST], class_="grid")
    rest = items[_LONGEST_LIST:]
    if not rest:
        return shown
    return element("div", shown, details(f"{len(rest)} more", element("div", *rest, class_="grid")))


def details(summary: str, *children: Content) -> Element:
    """Return a part that opens on demand."""
    return element("details", element("summary", summary), *children)
