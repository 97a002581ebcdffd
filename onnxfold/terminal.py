"""The only access to the terminal: every line printed by a command is made printable here.

Names from models and files are neither interpreted (rich's markup, escape sequences) nor cut into lines. A test sees to
it that no other module prints.
"""

import contextlib
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from onnxfold.errors import OutputClosedError, OutputError
from onnxfold.printable import printable, shortened

#: Longest line of a cell; tables of longer ones cannot be read.
_LONGEST_CELL = 300
#: Width of tables where output is no terminal.
_WIDTH = 120


def say(*lines: str, error: bool = False) -> None:
    """Print lines, on the error stream if `error` is set."""
    for line in lines:
        _write(shortened(line), error=error)


def say_json(value: Any) -> None:
    """Print a value as JSON in ASCII; DEL, the one control character that JSON itself leaves, is escaped, too."""
    _write(json.dumps(value, indent=2).replace("\x7f", "\\u007f"), error=False)


def say_traceback(error: BaseException) -> None:
    """Print the traceback of an error on the error stream."""
    import traceback

    say(*"".join(traceback.format_exception(error)).splitlines(), error=True)


@dataclass(frozen=True)
class Table:
    """A table of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Sequence[str]]]  # cells of one line, or of several
    left: Sequence[str]  # columns that are aligned to the left; all others are to the right
    narrow: Sequence[str] = ()  # columns that are never wrapped


def say_table(table: Table) -> None:
    """Print a table, of whatever width the terminal has."""
    from rich import table as rich_table
    from rich.console import Console
    from rich.text import Text  # the class that interprets no markup

    grid = rich_table.Table(title=Text(shortened(table.title, _LONGEST_CELL)), title_justify="left")
    for name in table.columns:
        justify: Any = "left" if name in table.left else "right"
        # Names of nodes are one long word each, and often differ at their end alone: it goes on in the next line.
        grid.add_column(Text(name), justify=justify, no_wrap=name in table.narrow, overflow="fold")
    for row in table.rows:
        cells = [[cell] if isinstance(cell, str) else cell for cell in row]
        grid.add_row(*(Text("\n".join(shortened(line, _LONGEST_CELL) for line in cell)) for cell in cells))
    stream = sys.stdout
    is_terminal = stream is not None and stream.isatty()
    # Drawn apart from the stream: only :func:`_write` knows what to do where the stream cannot be written.
    # It has the stream's encoding: rich draws lines of letters that this has.
    encoding, drawn = getattr(stream, "encoding", None) or "utf-8", io.BytesIO()
    paper = io.TextIOWrapper(drawn, encoding, errors="backslashreplace", newline="\n")
    width = shutil.get_terminal_size().columns if is_terminal else _WIDTH
    Console(file=paper, width=width, force_terminal=is_terminal).print(grid)
    paper.flush()
    _write(drawn.getvalue().decode(encoding).rstrip("\n"), error=False)


class PrintableFormatter(logging.Formatter):
    """Log records as printable lines; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return a record's message as one line."""
        return shortened(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return a traceback."""
        return "\n".join(map(shortened, super().formatException(ei).split("\n")))


def log_to_terminal(level: int) -> None:
    """Send log records of at least this level to the error stream; Python's warnings are such records, too."""
    logging.captureWarnings(True)
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


def say_usage_error(error: click.ClickException) -> None:
    """Print how to use the command, and the fault of its arguments, which are quoted as they are."""
    # The message of this one, which click has since 8.2, is the help text, which is ours.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return
    click.UsageError(shortened(error.format_message()), getattr(error, "ctx", None)).show()


def prepare_streams() -> None:
    """Make standard streams safe to write to: of any encoding, and open.

    A descriptor that came closed would be given to the next file that is opened, and what is printed would go into it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Discard the rest of standard output: the interpreter would complain about it when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write(text: str, *, error: bool) -> None:
    try:
        click.echo(text, err=error)
    except OSError as problem:
        if error:
            return
        if isinstance(problem, BrokenPipeError):
            raise OutputClosedError("standard output was closed by its reader") from None
        raise OutputError(f"standard output cannot be written: {printable(problem.strerror or str(problem))}") from None
