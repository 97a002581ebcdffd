"""Progress reports: a callback for library calls, and a line in the terminal."""

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from threading import Event, Lock, Thread
from typing import Any, Self

from onnxfold.config.quantities import show_seconds
from onnxfold.printable import printable, shortened
from onnxfold.terminal import say

#: Called with what is being done, how many of its steps are done, and how many there are (0: not counted).
Progress = Callable[[str, int, int], None]

#: What begins with this word is a line of its own, which stays.
ANNOUNCED = "model"
#: So is what begins with this one, and what is being done stays as it is.
NOTED = "sweep"
#: What a fold may tell about, in order; a text belongs to the stage that has its first word, or all of it.
ALL_FOLD_STAGES = (
    ("load", "check weights"),
    ("find fold groups",),
    ("measure latency", "measure layers"),
    (ANNOUNCED, "generate inputs", "write text", "deep inversion"),
    ("measure blocks", "probe blocks"),
    ("observe activations", "error curves", "probe groups"),
    ("measure folds",),
    ("partition", "FoldChannels"),
    ("RepairLeastSquares", "least squares", "Recalibrate", "recalibrate", "RepairApproximate"),
    ("compare activations", "RepairBias", "biases"),
    ("refine",),
    ("prepare quantisation", "measure ranges", "quantize"),
    ("verify in onnxruntime",),
)

_LOGGER = logging.getLogger(__name__)
_QUIET_SECONDS = 1.0
#: Between lines where there is no terminal.
_SECONDS_PER_LINE = 10.0
_LONGEST_TEXT = 100


def fold_stages(
    *, measures: bool = False, quantizes: bool = False, drops: bool = False, refines: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return the stages of a fold: for a latency, to a quantised model, after blocks were dropped, with a training."""
    left_out = {
        "measure latency": not measures,
        "measure blocks": not drops,
        "measure folds": not measures,
        "refine": not refines,
        "prepare quantisation": not quantizes,
    }
    return tuple(stage for stage in ALL_FOLD_STAGES if not left_out.get(stage[0], False))


def silent(text: str, done: int = 0, total: int = 0) -> None:
    """Tell the log only."""
    _LOGGER.info("%s%s", text, f" ({done + 1} of {total})" if total else "")


def under(title: str, progress: Progress) -> Progress:
    """Return a progress whose texts begin with a title: of several folds which one, of a stage its name."""
    return lambda text, done, total: progress(f"{title}{text}", done, total)


def part_of(progress: Progress, part: int, parts: int) -> Progress:
    """Return a progress that counts the steps of one of several walks, numbered from 0, as steps of all of them."""
    return lambda text, done, total: progress(text, part * total + done, parts * total)


class ProgressBar:
    """A line on the error stream that says which stage runs and how long the rest takes.

    On a terminal it is a bar, shown once the work takes longer than a second; elsewhere a line every ten seconds. It
    counts stages, which are what will be told about, in order. Part of a text up to its last ": " says where the stages
    begin anew.
    """

    def __init__(self, stages: Sequence[Sequence[str]] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stages, self._clock = stages, clock
        self._text, self._done, self._total = "", 0, 0
        self._since, self._end = clock(), math.inf
        self._stage = 0
        self._bar: Any = None
        self._task: Any = None
        self._ended, self._lock = Event(), Lock()
        self._ticker = Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __call__(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show a step."""
        silent(text, done, total)
        with self._lock:
            if text.startswith((f"{NOTED} ", f"{ANNOUNCED} ")):
                self._announce(text)
            if text.startswith(f"{NOTED} "):
                return
            if text != self._text or done < self._done:
                self._since, self._end, self._stage = self._clock(), math.inf, self._stage_number(text)
            if done != self._done and 0 < done < total:
                now = self._clock()
                self._end = min(self._end, now + (now - self._since) / done * (total - done))
            self._text, self._done, self._total = text, done, total
            self._show()

    def __str__(self) -> str:
        """Return the work that runs: the stage, its steps that are done, and about how long the rest of it takes."""
        if not self._text:
            return ""
        prefix, _, what = shortened(self._text, _LONGEST_TEXT).rpartition(": ")
        stage = f"stage {self._stage} of {len(self._stages)}" if self._stage else ""
        line = ": ".join([part for part in (", ".join(filter(None, (prefix, stage))), what) if part])
        if self._total > 1:
            line += f", {self._done} of {self._total}"
        return f"{line}, {self._remaining()}" if self._remaining() else line

    def _remaining(self) -> str:
        """Return how long the steps that are left take if they take as long as those that are done.

        It does not grow; where the steps turn out to take longer, nothing more is said.
        """
        left = self._end - self._clock()
        return f"about {show_seconds(left)} left" if 0 < self._done < self._total and 0.0 < left < math.inf else ""

    def _stage_number(self, text: str) -> int:
        """Return the number of the stage that a text belongs to; the last one's where it belongs to none."""
        what = text.rpartition(": ")[2]
        words = {what, what.split(" ", 1)[0], text.split(" ", 1)[0]}
        stages = (i for i, texts in enumerate(self._stages, 1) if not words.isdisjoint(texts))
        return next(stages, self._stage)

    def _tick(self) -> None:
        """Open the bar once the work takes a while, or print lines: also in steps that take long."""
        if self._ended.wait(_QUIET_SECONDS):
            return
        if _is_terminal():
            self._open()
            return
        pause = _SECONDS_PER_LINE - _QUIET_SECONDS
        while not self._ended.wait(pause):
            pause = _SECONDS_PER_LINE
            with self._lock:
                line = str(self)
            if line and not _LOGGER.isEnabledFor(logging.INFO):  # the log tells every step already
                say(line, error=True)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with self._lock:
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("")
            self._bar.start()
            self._show()

    def _announce(self, text: str) -> None:
        if _LOGGER.isEnabledFor(logging.INFO):  # the log has told it
            return
        if self._bar is None:
            say(text, error=True)
        else:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=str(self), completed=self._done, total=self._total or None)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()
        if self._bar is not None:
            self._bar.stop()


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False
