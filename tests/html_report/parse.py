"""A page, taken apart."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}


class Page(HTMLParser):
    """Every element with its attributes, what encloses it, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.of: dict[int, list[int]] = {}  # children by element, in order
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert not self._open, f"left open: {[self.elements[i][0] for i in self._open]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        index = len(self.elements)
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        self.texts.append("")
        if self._open:
            self.of.setdefault(self._open[-1], []).append(index)
        if tag not in _VOID:
            self._open.append(index)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open[-1]][0] == tag, f"</{tag}> closes <{self.elements[self._open[-1]][0]}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for index in self._open:
            self.texts[index] += data

    def all(self, tag: str) -> list[int]:
        return [i for i, (name, _) in enumerate(self.elements) if name == tag]

    def by_id(self, name: str) -> int:
        (found,) = [i for i, (_, attrs) in enumerate(self.elements) if attrs.get("id") == name]
        return found

    def inside(self, index: int) -> list[int]:
        return [i for child in self.of.get(index, ()) for i in (child, *self.inside(child))]

    def rows(self, section: str) -> list[list[str]]:
        """Return the texts of the cells of a section's tables."""
        found = [i for i in self.inside(self.by_id(section)) if self.elements[i][0] == "tr"]
        return [[self.texts[cell] for cell in self.of[row]] for row in found]
