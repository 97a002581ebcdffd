"""Text made safe for a terminal, a log and a browser.

Names in a model, texts of errors and names of files come from outside. Raw, their control characters could move the
cursor, forge lines and turn the direction of writing. Whatever is shown passes through :func:`printable`.
"""

import unicodedata

#: Longest text that a line of output shows in full; names in models have no limit of their own.
LONGEST_LINE = 1000


def printable(text: str) -> str:
    r"""Return `text`, in one line, with every character as a Python escape that :meth:`str.isprintable` refuses.

    These are controls, line breaks, marks of direction, halves of surrogate pairs and the like; spaces stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else repr(c)[1:-1] for c in text)


def shortened(text: str, longest: int = LONGEST_LINE) -> str:
    """Return printable text on one line of bounded length: longer text loses its middle."""
    if len(text) > longest:
        head, tail = 2 * longest // 3, longest // 4
        text = f"{text[:head]} ... ({len(text) - head - tail:,} characters left out) ... {text[-tail:]}"
    return printable(text)
