"""Texts to judge by: one that the user names, of which a fold may see the front, and one that every machine has."""

from __future__ import annotations

import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt

from onnxfold.inputs.tokens.tokenizer import Tokenizer

Ids = npt.NDArray[np.int64]

#: The front of the text that a fold may be shown: so many windows of so many tokens.
WINDOWS, LENGTH = 24, 512
#: The other text: Python's own reference, as `help("topics")` shows it.
REFERENCE = f"Python {sys.version_info.major}.{sys.version_info.minor}'s reference"
_SENTENCES, _SHORTEST, _LONGEST = 600, 40, 300


def reference() -> str:
    """Return the other text."""
    return "\n\n".join(topics[name] for name in sorted(topics))


def halves(text: Path, tokenizer: Tokenizer, windows: int = WINDOWS, length: int = LENGTH) -> tuple[Ids, str]:
    """Return the ids of the front of a text, shape (windows, length), and the text behind it."""
    lines, wanted = text.read_text(encoding="utf-8").splitlines(keepends=True), windows * length
    used, ids = 0, np.zeros(0, np.int64)
    while len(ids) < wanted and used < len(lines):
        used += 100
        ids = np.asarray(tokenizer.ids("".join(lines[:used])), np.int64)
    return ids[:wanted].reshape(-1, length), "".join(lines[used:])


def sentences(text: str) -> list[str]:
    """Return the first 600 lines of 40 to 300 characters."""
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if _SHORTEST <= len(line) <= _LONGEST][:_SENTENCES]
