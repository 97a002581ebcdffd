"""Options of a fold on the command line, made from the table of options, in its groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import cloup

from onnxfold.commands import shared
from onnxfold.config import NOTHING, OPTIONS, FoldConfig
from onnxfold.config.option import GROUPS, LISTED, SHARED, Kind, Option, file_of, flag_of

#: The section before the groups: options that most people need.
FIRST = "Most used"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_DEFAULTS = {entry.name: entry.default for entry in fields(FoldConfig)}
_ONCE_PER_KEY: Mapping[Kind, shared.Parsed] = {Kind.SHARES: shared.RATIO, Kind.SHAPES: shared.SHAPE}
_TYPES: Mapping[Kind, Any] = {
    Kind.NUMBER: float, Kind.INTEGER: int, Kind.PATH: shared.PATH, Kind.STEP: shared.STEP,
    Kind.NUMBERS: shared.numbers_of(float, "numbers, such as 0.485,0.456,0.406"),
    Kind.INTEGERS: shared.numbers_of(int, "whole numbers, such as 30,25"), **_ONCE_PER_KEY,
}  # fmt: skip


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
    """Return options of a fold, for another command that has them, too."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            function = _single(name, OPTIONS[name], ())(function)
        return function

    return decorate


def _option(command: str, name: str, entry: Option, words: Sequence[str]) -> Decorator | None:
    if not entry.in_command or (command == "merge" and not entry.in_merge):
        return None
    if command != "sweep":
        return _single(name, entry, words)
    if entry.in_sweep == LISTED:
        return _list_option(name, entry)
    return _single(name, entry, words, left_to_folds=True) if entry.in_sweep == SHARED else None


def _single(name: str, entry: Option, words: Sequence[str], *, left_to_folds: bool = False) -> Decorator:
    """Return an option with one value; in a sweep, a default is that of every fold."""
    default = _DEFAULTS[name]
    several = entry.kind in _ONCE_PER_KEY or entry.kind is Kind.TEXTS
    has_default = default is not None and not several and not left_to_folds
    settings: dict[str, Any] = {"help": entry.command_line_help}
    if entry.kind is Kind.FLAG:
        settings["is_flag"] = True
    else:
        kind = shared.Names(entry.words, *words) if entry.words else _TYPES.get(entry.kind, str)
        settings |= {"type": kind, "metavar": entry.metavar, "multiple": several}
        settings |= {"default": default, "show_default": not entry.default and default != ()} if has_default else {}
    if name == "max_memory":
        settings["callback"] = shared.limit_memory
    return cloup.option(flag_of(name, entry), name, **settings)


def _list_option(name: str, entry: Option) -> Decorator:
    """Return an option of a sweep whose values are one goal, or one method, each."""
    text = f"{entry.command_line_help.partition('  [default')[0].rstrip('.')}: a list, one goal each."
    if entry.kind is Kind.NUMBER:
        return cloup.option(flag_of(name, entry), name, metavar="LIST", help=text)
    kind = shared.Names(entry.words) if entry.words else str
    return cloup.option(flag_of(name, entry), name, metavar="LIST", type=kind, callback=split_words, help=text)


def split_words(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Split the value of an option at commas."""
    return () if value is None else tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))


def values_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a fold's options on the command line, as a request takes them."""
    values = {name: value for name, value in options.items() if name in OPTIONS}
    return {name: dict(v) if OPTIONS[name].kind in _ONCE_PER_KEY else v for name, v in values.items()}


def files_named(options: Mapping[str, Any]) -> dict[str, Path | None]:
    """Return the files that the options name, by their names on the command line."""
    return {flag_of(name, entry): file_of(entry, options.get(name)) for name, entry in OPTIONS.items()}
