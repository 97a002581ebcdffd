"""Text made safe for a terminal, a log and a browser.

Names in a model, texts of errors and names of files come from outside. Raw, their control characters could move the
cursor, forge lines and turn the direction of writing. Whatever is shown passes through :func:`printable`.
"""

import unicodedata

#: Longest text that a line of output shows in full; names in models have no limit of their own.
LONGEST_LINE = 1000


def printable(text: str) -> str:
    r"""Return `text` with every unprintable character written as a Python escape.

    That is all that :meth:`str.isprintable` calls not printable, spaces excepted: controls (C0, DEL, C1), line breaks,
    U+2028 and U+2029, marks of direction (U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) and other invisible
    marks, halves of surrogate pairs, private and unassigned code points. The result is one line. Printable text comes
    back as it is, so escaping twice changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or unicodedata.category(c) == "Zs" else escaped(c) for c in text)


def escaped(character: str) -> str:
    """Return one character as a Python escape."""
    return character.encode("unicode_escape").decode("ascii")


def shortened(text: str, longest: int = LONGEST_LINE) -> str:
    """Return printable text on one line of bounded length: longer text loses its middle."""
    if len(text) > longest:
        head, tail = 2 * longest // 3, longest // 4
        text = f"{text[:head]} ... ({len(text) - head - tail:,} characters left out) ... {text[-tail:]}"
    return printable(text)
