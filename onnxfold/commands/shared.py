"""Shared parts of the commands: argument types, flags, common output lines, and options from the table of options."""

import io
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import cloup
from click.shell_completion import CompletionItem

from onnxfold.config import NOTHING, OPTIONS, FoldConfig
from onnxfold.config.option import GROUPS, LISTED, SHARED, Kind, Option, file_of, flag_of
from onnxfold.files import STDOUT
from onnxfold.machine.memory import memory_limit
from onnxfold.terminal import say, say_json

_SHOWN_REFUSALS = 8
_DIGITS = re.compile(r"\d+")


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A value that a function makes of a text; it raises a ValueError for others."""

    def __init__(self, name: str, parse: Callable[[str], Any], fault: str) -> None:
        self.name = name
        self._parse = parse
        self._fault = fault

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a text; a value stays as it is."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError:
            self.fail(f"'{value}' {self._fault}", param, ctx)


def numbers_of(kind: Callable[[str], Any], example: str) -> Parsed:
    """Return the type of numbers with commas between them."""
    return Parsed("numbers", lambda text: tuple(map(kind, text.split(","))), f"is not a list of {example}")


def pair_of(name: str, separator: str, parse: Callable[[str], Any]) -> Parsed:
    """Return the type of ``KEY<separator>VALUE``; the last separator counts, because keys may contain it."""

    def split(text: str) -> tuple[str, Any]:
        key, _, value = text.rpartition(separator)
        if not key:
            raise ValueError(text)
        return key, parse(value)

    return Parsed(name, split, f"is not {name}")


def words_of(table_name: str) -> list[str]:
    """Return the words of a table, named as ``module:name``."""
    module, _, name = table_name.partition(":")
    table = getattr(import_module(module), name)
    return list(table() if callable(table) else table)


class Names(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A word that shells complete: a name in a table, or a file; it is checked where it is used."""

    name = "text"

    def __init__(self, table_name: str, *more: str) -> None:
        self._table_name = table_name
        self._more = more

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # type: ignore[type-arg,unused-ignore]
        """Return the words that begin like the last one of a list with commas; a file where none does."""
        words = [*words_of(self._table_name), *self._more]
        before, comma, last = incomplete.rpartition(",")
        items = [CompletionItem(f"{before}{comma}{word}") for word in words if word.startswith(last)]
        return items or [CompletionItem(incomplete, type="file")]


STEP = Parsed(
    "integer|auto", lambda text: text if text == "auto" else int(text), "is neither a whole number nor 'auto'"
)
RATIO = pair_of("GLOB=R", "=", float)
SHAPE = pair_of("NAME:D,D,...", ":", lambda text: tuple(map(int, text.split(","))))
PATH = click.Path(path_type=Path)

#: What the names of reports end in.
JSON, HTML = (".json",), (".html", ".htm")


def limit_memory(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Set the limit of memory as long as the command runs."""
    context.with_resource(memory_limit(value))
    return value


def _log_more(context: click.Context, flag: click.Parameter, value: bool) -> None:
    """Take a flag behind a command for the one in front of it."""
    context.obj[flag.name] |= value
    if context.obj["verbose"] or context.obj["debug"]:
        logging.getLogger().setLevel(logging.DEBUG if context.obj["debug"] else logging.INFO)


#: Flags of every command, which may stand behind it, too.
_flag = partial(cloup.option, is_flag=True, expose_value=False, callback=_log_more)
verbose_flag = _flag("--verbose", help="Log what happens.")
debug_flag = _flag("--debug", help="Show tracebacks of errors.")
about_result = [
    cloup.option("--no-verify", is_flag=True, help="Write the result without running it in onnxruntime."),
    cloup.option("--force", is_flag=True, help="Write the result even if it is destroyed."),
    cloup.option("--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, all else on stderr."),
    cloup.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only."),
    verbose_flag, debug_flag,
]  # fmt: skip
report_file = cloup.option("--report", type=PATH, metavar="FILE", help="Write a report, .json or .html; - prints JSON.")


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    """Accept ``--verbose`` and ``--debug`` after the command, too."""
    return verbose_flag(debug_flag(function))


def print_refusals(refusals: list[Any], *, verbose: bool) -> None:
    """Print the refusals with reasons, the largest first; those that differ in numbers of layers only, in one line."""
    alike: dict[Any, list[Any]] = {}
    for i, refusal in enumerate(refusals):
        names = (_DIGITS.sub("", text) for text in (refusal.node, refusal.axis, refusal.reason))
        alike.setdefault(i if verbose else (refusal.op_type, refusal.weights, *names), []).append(refusal)
    kinds = sorted(alike.values(), key=lambda group: -sum(refusal.weights for refusal in group))
    shown = kinds if verbose else kinds[:_SHOWN_REFUSALS]
    for first, *others in shown:
        more = f" and {len(others)} more like it" if others else ""
        held = f"{first.weights * (1 + len(others)):,} weights"
        say(f"left alone: {held}, {first.op_type} '{first.node}'{more}, {first.axis}: {first.reason}")
    left = len(refusals) - sum(map(len, shown))
    if left:
        say(f"  ... and {left} more (--verbose shows all)")


def wrote(path: Path) -> str:
    """Return the line that reports an output."""
    return f"wrote nothing to {path}" if path.is_char_device() else f"wrote {path}"


def report_files(path: Path | None, text: Callable[[], str]) -> dict[Path, bytes]:
    """Return the file of a report by its path; none where it was not asked for, or is printed."""
    return {} if path is None or path == STDOUT else {path: text().encode()}


@contextmanager
def json_on_stdout(wanted: bool, values: Callable[[], Any], *, quiet: bool = False) -> Iterator[None]:
    """Print a report as JSON if it is wanted; the block's lines for people go to standard error then."""
    with redirect_stdout(io.StringIO() if quiet else sys.stderr if wanted else sys.stdout):
        yield
    if wanted:
        say_json(values())


def latency_line(latency: Any, before: str = "the first") -> str:
    """Return how a latency was measured, against which model, and how sure the ratio is."""
    return f"latency: {latency.ratio:.2f} of {before}, spread {latency.spread:.0%} ({latency.how})"


#: The section before the groups: options that most people need.
FIRST = "Most used"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_ONCE_PER_KEY: Mapping[Kind, Parsed] = {Kind.SHARES: RATIO, Kind.SHAPES: SHAPE}
_TYPES: Mapping[Kind, Any] = {
    Kind.NUMBER: float, Kind.INTEGER: int, Kind.PATH: PATH, Kind.STEP: STEP,
    Kind.NUMBERS: numbers_of(float, "numbers, such as 0.485,0.456,0.406"),
    Kind.INTEGERS: numbers_of(int, "whole numbers, such as 30,25"), **_ONCE_PER_KEY,
}  # fmt: skip


class FoldCommand(cloup.Command):
    """A command with options of a fold; some of them may stand without a value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; behind an option that may stand alone, a word that is not of its table is no value of it."""
        alone = {flag_of(name, entry): entry for name, entry in OPTIONS.items() if entry.alone}
        written = list(args)
        for i, (word, following) in enumerate(pairwise([*args, ""])):
            entry = alone.get(word)
            if entry is not None and "--" not in args[:i] and not {*following.split(",")} & {*words_of(entry.words)}:
                written[i] = f"{word}={entry.alone}"
        return super().parse_args(ctx, written)


def options_for(
    command: str, more: Mapping[str, Sequence[Decorator]], words: Mapping[str, Sequence[str]] = NOTHING
) -> Decorator:
    """Return a decorator that gives a command the options of a fold, in sections."""
    sections: dict[str, list[Decorator]] = {title: [] for title in (FIRST, *GROUPS)}
    for name, entry in OPTIONS.items():
        made = _option(command, name, entry, words.get(name, ()))
        if made is not None:
            sections[FIRST if entry.first else entry.group].append(made)
    for title, options in more.items():
        sections[title] += options

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for title, options in reversed(sections.items()):
            if options:
                function = cloup.option_group(title, *options)(function)
        return function

    return decorate


def option(*names: str) -> Decorator:
    """Return options of a fold, for another command that has them, too; a limit of memory is no value for it."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            function = _single(name, OPTIONS[name], (), expose_value=name != "max_memory")(function)
        return function

    return decorate


def _option(command: str, name: str, entry: Option, words: Sequence[str]) -> Decorator | None:
    if not entry.in_command or (command == "merge" and not entry.in_merge):
        return None
    if command != "sweep":
        return _single(name, entry, words)
    if entry.in_sweep == LISTED:  # the values are one goal, method or refinement each
        text = f"{entry.command_line_help.partition('  [default')[0].rstrip('.')}: a list, one fold each."
        if entry.kind is Kind.NUMBER:
            return cloup.option(flag_of(name, entry), name, metavar="LIST", help=text)
        kind = Names(entry.words) if entry.words else str

        def split(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
            return tuple(dict.fromkeys(word.strip() for word in (value or "").split(",") if word.strip()))

        return cloup.option(flag_of(name, entry), name, metavar="LIST", type=kind, callback=split, help=text)
    return _single(name, entry, words, left_to_folds=True) if entry.in_sweep == SHARED else None


def _single(
    name: str, entry: Option, words: Sequence[str], *, left_to_folds: bool = False, expose_value: bool = True
) -> Decorator:
    """Return an option with one value; in a sweep, a default is that of every fold."""
    default = getattr(FoldConfig, name, None)  # mappings have none
    several = entry.kind in _ONCE_PER_KEY or entry.kind is Kind.TEXTS
    has_default = default is not None and not several and not left_to_folds
    settings: dict[str, Any] = {"help": entry.command_line_help, "expose_value": expose_value}
    if entry.kind is Kind.FLAG:
        settings["is_flag"] = True
    else:
        kind = Names(entry.words, *words) if entry.words else _TYPES.get(entry.kind, str)
        settings |= {"type": kind, "metavar": entry.metavar, "multiple": several}
        settings |= {"default": default, "show_default": not entry.default} if has_default else {}
    if name == "max_memory":
        settings["callback"] = limit_memory
    return cloup.option(flag_of(name, entry), name, **settings)


def values_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a fold's options on the command line, as a request takes them."""
    values = {name: value for name, value in options.items() if name in OPTIONS}
    return {name: dict(v) if OPTIONS[name].kind in _ONCE_PER_KEY else v for name, v in values.items()}


def files_named(options: Mapping[str, Any]) -> dict[str, Path | None]:
    """Return the files that the options name, by their names on the command line."""
    return {flag_of(name, entry): file_of(entry, options.get(name)) for name, entry in OPTIONS.items()}
