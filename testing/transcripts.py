"""Commands in pages with what they print, and a comparison that leaves numbers aside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command as a page shows it.

    Parameters
    ----------
    line : str
        What is typed.
    printed : str
        What the page shows below it.
    """

    line: str
    printed: str


def commands_of(page: Path) -> list[Command]:
    """Return the commands of a page's ``console`` blocks, which begin with ``$ ``, in order."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = part.replace("\\\n", "").partition("\n")
            found.append(Command(" ".join(line.split()), printed))
    return found


def masked(text: str) -> str:
    r"""Return what a command printed with every number as one mark, and without what hangs on their lengths.

    A table has a row of latencies only where these were steady, and a verdict hangs on a limit.

    Examples
    --------
    >>> masked("kept 1,234 of 99.5%   in 0.2 s\n")
    'kept # of #% in # s'
    """
    text = re.sub(r"^.*│ latency \(ms\).*\n", "", text, flags=re.MULTILINE)
    text = text.replace("verdict: damaged: keeps only", "verdict: keeps")
    text = re.sub(r"[━─]+", "─", text)
    text = re.sub(r"\b[0-9a-f]{8}\b(?=\.)", "#", text)  # a key in the name of a file
    text = re.sub(r"-?\d[\d,.]*(?:e[+-]?\d+)?", lambda match: "#" + _end(match[0]), text)
    return "\n".join(line.strip() for line in re.sub(r"[ \t]+", " ", text).splitlines() if line.strip())


def _end(number: str) -> str:
    """Return the full stop or comma that follows a number and is no part of it."""
    return number[len(number.rstrip(".,")) :]
