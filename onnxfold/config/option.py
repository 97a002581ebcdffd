"""An option of a fold: all that is said of it, once, for Python, the command line, reports and pages."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

#: Sections of ``--help``, in this order.
GROUPS = GOAL, METHOD, INPUTS, LANGUAGE, OUTPUT, MACHINE = (
    "Goal", "Method", "Inputs", "Language models", "Output", "Limits of this machine",
)  # fmt: skip
#: How a sweep takes an option: one value for all folds, or a list with a goal or a method each.
SHARED, LISTED = "shared", "listed"
#: Whether reports hold an option: in any case, where it is not its default, or never, as it changes no result.
ALWAYS, CHANGED, NEVER = "always", "changed", "never"


class Kind(Enum):
    """How a command line writes the value of an option."""

    TEXT = "text"
    NUMBER = "number"
    INTEGER = "integer"
    FLAG = "flag"
    PATH = "path"
    STEP = "integer or auto"
    NUMBERS = "numbers with commas"
    INTEGERS = "integers with commas"
    SHARES = "KEY=NUMBER, once per key"
    SHAPES = "KEY:INTEGER,..., once per key"
    TEXTS = "text, once per value"


@dataclass(frozen=True, kw_only=True)
class WrittenForm:
    """How a command line writes an option."""

    kind: Kind = Kind.TEXT  # how a command line writes it
    metavar: str | None = None  # what stands for the value in ``--help``
    flag: str = ""  # the name on the command line, where it is another
    words: str = ""  # values that shells complete: ``module:name`` of their table
    first: bool = False  # whether it is one of those that most people need
    alone: str = ""  # the value that it means where no word of its table follows; empty where it needs one


@dataclass(frozen=True, kw_only=True)
class Uses:
    """Which commands have an option, and whether reports hold it."""

    in_command: bool = True  # whether the commands have it
    in_merge: bool = False
    in_sweep: str = ""  # SHARED, LISTED, or empty where ``sweep`` does not have it
    recorded: str = CHANGED  # ALWAYS, CHANGED or NEVER


@dataclass(frozen=True, kw_only=True)
class Option(WrittenForm, Uses):
    """An option of a fold; its name, type and default are those of the field of FoldConfig that it annotates."""

    help: str  # what it does; other options stand in backticks, rows of tables in single quotes
    group: str  # one of GROUPS
    #: Takes the name and a value that is not None; returns the value as it is kept, or raises.
    check: Callable[[str, Any], Any] = lambda _, value: value
    more: str = ""  # what references say beyond that
    default: str = ""  # what happens without it, where the default does not say that
    reads: str | None = None  # ending of the names that are files which the fold reads
    role: str = ""  # what messages call that file
    request: str = ""  # the option as a goal, in words

    @property
    def command_line_help(self) -> str:
        """The help as a command line shows it."""
        text = re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", self.help)
        return re.sub(r"'([\w-]+)'", r"\1", text) + (f"  [default: {self.default}]" if self.default else "")

    @property
    def reference_help(self) -> str:
        """The help as references show it."""
        return " ".join(filter(None, (self.help, self.more, f"Default: {self.default}." if self.default else "")))


def file_of(option: Option, value: Any) -> Path | None:
    """Return the file that the value of an option names; None where it names none."""
    is_path = isinstance(value, str | Path) and option.reads is not None and str(value).endswith(option.reads)
    return Path(value) if is_path else None


def flag_of(name: str, option: Option) -> str:
    """Return the option's name on the command line."""
    return f"--{option.flag or name.replace('_', '-')}"
