"""Commands in this process, with what they print and their exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from onnxfold.cli import main


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def line(self) -> str:
        """Return the error, which must be one plain line, apart from the usage that stands before it."""
        lines = [line for line in self.err.splitlines() if line.lower().startswith("error")]
        assert len(lines) == 1, self.err
        assert "bug in onnxfold" not in self.err
        assert "Traceback" not in self.err
        assert not RAW.search(self.err), ascii(self.err)
        return lines[0]


#: What must never reach a terminal or a page: controls but the line feed, marks of direction, separators, surrogates.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the command line as the console script does."""

    def run(*args: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["onnxfold", *map(str, args)])
        capsys.readouterr()
        code: object = 0
        try:
            main()
        except SystemExit as done:
            code = done.code
        assert isinstance(code, int)
        text = capsys.readouterr()
        return Done(code, text.out, text.err)

    return run
