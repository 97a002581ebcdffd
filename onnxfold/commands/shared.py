"""Shared parts of the commands: argument types, flags, and common output lines."""

import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import click

from onnxfold.machine.memory import limited_to
from onnxfold.terminal import say, say_json

_SHOWN_REFUSALS = 8
_DIGITS = re.compile(r"\d+")


class Pairs(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """``KEY<separator>VALUE`` as a pair."""

    def __init__(self, name: str, separator: str, convert: Callable[[str], Any]) -> None:
        self.name = name
        self._separator = separator
        self._convert = convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Split at the last separator: names may contain it."""
        if isinstance(value, tuple):
            return value
        key, found, text = str(value).rpartition(self._separator)
        try:
            return (
                (key, self._convert(text)) if found and key else self.fail(f"'{value}' is not {self.name}", param, ctx)
            )
        except ValueError:
            self.fail(f"'{value}' is not {self.name}", param, ctx)


class Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, convert: Callable[[str], Any], example: str) -> None:
        self._convert = convert
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Split at commas."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._convert(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"'{value}' is not a list of {self._example}", param, ctx)


class Step(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A whole number, or the word ``auto``."""

    name = "integer|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Leave the word as it is."""
        if value == "auto":
            return "auto"
        try:
            return int(value)
        except ValueError:
            self.fail(f"'{value}' is neither a whole number nor 'auto'", param, ctx)


STEPS = Numbers(int, "whole numbers, such as 30,25")
PER_CHANNEL = Numbers(float, "numbers, such as 0.485,0.456,0.406")
STEP = Step()
RATIO = Pairs("GLOB=R", "=", float)
SHAPE = Pairs("NAME:D,D,...", ":", lambda text: tuple(int(d) for d in text.split(",")))
PATH = click.Path(path_type=Path)

#: What the names of reports end in.
JSON, HTML = (".json",), (".html", ".htm")


#: Of latencies; one is what a small device spends on a network, and what says most on a machine that is shared.
threads = partial(
    click.option, "--threads", type=int, default=1, show_default=True, metavar="N",
    help="Threads of onnxruntime wherever latency is measured.",
)  # fmt: skip


def limits(function: Callable[..., None]) -> Callable[..., None]:
    """Accept limits of what a result costs: ``--max-params``, ``--max-macs``, ``--max-ram`` and ``--max-flash``."""
    flash = click.option("--max-flash", metavar="BYTES", help="Limit of weights and graph structure, e.g. 1M.")
    ram = click.option("--max-ram", metavar="BYTES", help="Limit of activation memory, e.g. 256K (K = 1024).")
    macs = click.option("--max-macs", metavar="N", help="Limit of multiply-accumulates per sample, e.g. 50M.")
    return click.option("--max-params", metavar="N", help="Limit of parameters, e.g. 1.5M.")(macs(ram(flash(function))))


def reported(function: Callable[..., None]) -> Callable[..., None]:
    """Accept ``--seed``, ``--report`` and ``--json``."""
    printed = click.option(
        "--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, all else on stderr."
    )
    file = click.option("--report", type=PATH, metavar="FILE", help="Write a report, .json or .html; - prints JSON.")
    seed = click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random numbers.")
    return seed(file(printed(function)))


def pixels(function: Callable[..., None]) -> Callable[..., None]:
    """Accept ``--mean`` and ``--std``, for folders of images."""
    units = "one or one per channel: up to 1 for pixels of 0..1, larger for 0..255."
    std = click.option("--std", type=PER_CHANNEL, metavar="S[,S...]", help="Their standard deviation, in these units.")
    mean = click.option("--mean", type=PER_CHANNEL, metavar="M[,M...]", help=f"Mean of the pixels of a folder, {units}")
    return mean(std(function))


def attention(function: Callable[..., None]) -> Callable[..., None]:
    """Accept ``--allow-cache-change``, ``--per-layer-cache`` and ``--inside-heads``."""
    per_layer = click.option(
        "--per-layer-cache", is_flag=True, help="With --allow-cache-change: other numbers in every layer."
    )
    allow = click.option(
        "--allow-cache-change", is_flag=True,
        help="Let heads in caches of keys and values go, equally many in every layer; shapes of caches change.",
    )  # fmt: skip
    inside = click.option(
        "--inside-heads", is_flag=True,
        help="Keep heads of attention; dimensions between values and outputs go instead, as many of every head.",
    )  # fmt: skip
    return allow(per_layer(inside(function)))


def _limit_memory(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    context.with_resource(limited_to(value))
    return value


#: Sets the limit as long as the command runs; a command that also takes the value adds ``expose_value=True``.
max_memory = partial(
    click.option,
    "--max-memory",
    metavar="BYTES",
    callback=_limit_memory,
    expose_value=False,
    help="Memory limit, e.g. 2G.  [default: 3/4 of the machine's or container's]",
)


def common(function: Callable[..., None]) -> Callable[..., None]:
    """Accept ``--verbose`` and ``--debug`` after the command, too."""
    function = click.option("--debug", "local_debug", is_flag=True, help="Show tracebacks of errors.")(function)
    return click.option("--verbose", "local_verbose", is_flag=True, help="Log what happens.")(function)


quiet = click.option("-q", "--quiet", is_flag=True, help="Print warnings and errors only.")


def set_flags(context: click.Context, options: dict[str, Any]) -> None:
    """Take the flags out of a command's options and set up logging."""
    context.obj["verbose"] |= options.pop("local_verbose")
    context.obj["debug"] |= options.pop("local_debug")
    if context.obj["verbose"] or context.obj["debug"]:
        logging.getLogger().setLevel(logging.DEBUG if context.obj["debug"] else logging.INFO)


def print_refusals(refusals: list[Any], *, verbose: bool) -> None:
    """Print the refusals with reasons, the largest first; those that differ in numbers of layers only, in one line."""
    alike: dict[Any, list[Any]] = {}
    for i, refusal in enumerate(refusals):
        names = (_DIGITS.sub("", text) for text in (refusal.node, refusal.axis, refusal.reason))
        alike.setdefault(i if verbose else (refusal.op_type, refusal.weights, *names), []).append(refusal)
    kinds = sorted(alike.values(), key=lambda found: -sum(refusal.weights for refusal in found))
    shown = kinds if verbose else kinds[:_SHOWN_REFUSALS]
    for first, *others in shown:
        more = f" and {len(others)} more like it" if others else ""
        held = f"{first.weights * (1 + len(others)):,} weights"
        say(f"left alone: {held}, {first.op_type} '{first.node}'{more}, {first.axis}: {first.reason}")
    left = len(refusals) - sum(map(len, shown))
    if left:
        say(f"  ... and {left} more (--verbose shows all)")


def file_named(value: str | None, ending: str) -> Path | None:
    """Return an option's value as a path if it names a file and not one of the known words."""
    return Path(value) if value is not None and value.endswith(ending) else None


def wrote(path: Path) -> str:
    """Return the line that reports an output."""
    return f"wrote nothing to {path}" if path.is_char_device() else f"wrote {path}"


@contextmanager
def json_on_stdout(wanted: bool, values: Callable[[], Any], *, quiet: bool = False) -> Iterator[None]:
    """Print a report as JSON if it is wanted; what the block prints, for people, goes to standard error then.

    Parameters
    ----------
    wanted : bool
        Whether the report is printed.
    values : callable
        Returns it.
    quiet : bool
        Whether what the block prints is dropped.
    """
    with redirect_stdout(io.StringIO() if quiet else sys.stderr if wanted else sys.stdout):
        yield
    if wanted:
        say_json(values())


def size_cells(before: Any, after: Any, latency: Any) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table of what two models cost, and of their latency, if it was measured."""
    from onnxfold.report import milliseconds

    rows = [
        ("parameters", *change(before.parameters, after.parameters)),
        (before.macs_title, *change(before.macs, after.macs)),
        ("size (bytes)", *change(before.size_bytes, after.size_bytes)),
    ]
    if latency is not None:
        times = milliseconds(latency.before_s), milliseconds(latency.after_s)
        rows.insert(2, ("latency (ms)", *times, f"{1.0 - latency.ratio:.1%}"))
    return rows


def change(old: int | None, new: int | None) -> tuple[str, str, str]:
    """Return two counts, and which part of the first is gone."""
    if old is None or new is None:
        return "unknown", "unknown", ""
    return f"{old:,}", f"{new:,}", f"{1 - new / old:.1%}" if old else ""


def latency_line(latency: Any) -> str:
    """Return how a latency was measured, and how sure the ratio is."""
    return f"latency: {latency.ratio:.2f} of the first, spread {latency.spread:.0%} ({latency.how})"
