"""How work in progress is told: a callable the library calls, and a terminal that shows it."""

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from onnxfold.printable import shortened

#: Called with what is being done, how many of its steps are done, and how many there are (0: not counted).
Progress = Callable[[str, int, int], None]

_LOGGER = logging.getLogger(__name__)
_QUIET_SECONDS = 1.0
_LONGEST_TEXT = 100


def silent(text: str, done: int = 0, total: int = 0) -> None:
    """Tell the log only."""
    _LOGGER.info("%s%s", text, f" ({done + 1} of {total})" if total else "")


class ProgressBar:
    """A bar on the terminal's error stream, shown once the work takes longer than a second.

    Examples
    --------
    >>> with ProgressBar() as tell:
    ...     tell("cluster conv1", 0, 12)
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show a step."""
        silent(text, done, total)
        if time.perf_counter() - self._start < _QUIET_SECONDS:
            return
        if self._bar is None and not self._open():
            return
        self._bar.update(self._task, description=shortened(text, _LONGEST_TEXT), completed=done, total=total or None)

    def _open(self) -> bool:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            return False
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("")
        self._bar.start()
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
