"""Checks of arguments: type first, then range. Every public function uses them."""

import difflib
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from onnxfold.config.quantities import parse_bytes, parse_latency
from onnxfold.errors import ConfigError, OptionTypeError

F = TypeVar("F", bound=Callable[..., Any])

#: Random generators of numpy and torch take seeds up to this, and a few above the one that is given.
LARGEST_SEED = 2**31 - 1
#: Largest dimension of a tensor that is believed: products of a few stay far within what can be counted.
LARGEST_DIMENSION = 2**31 - 1
#: Largest number of parameters, operations or bytes that a limit may be.
_LARGEST_LIMIT = 10**30
#: Text with more digits is no number of tokens.
_DIGITS = 12
#: The value of `cache` that keeps nothing.
NO_CACHE = "none"
_MOST_MILLISECONDS = 1e8
#: Most threads that latency is measured with.
MOST_THREADS = 1024


def takes_keywords(types: type | None = None, **defaults: Any) -> Callable[[F], F]:
    """Return a decorator for functions with keywords; an unknown one is refused by the name that was meant.

    Those in ``**options`` have the types of a TypedDict, these defaults, and a place in the signature.
    """

    def decorate(function: F) -> F:
        plain, hints = signature(function), get_type_hints(types) if types else {}
        own = [p for p in plain.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        more = [Parameter(n, Parameter.KEYWORD_ONLY, default=v, annotation=hints[n]) for n, v in defaults.items()]
        known = [p.name for p in (*own, *more)]

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in known:
                    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
                    hint = f"did you mean {close[0]}?" if close else f"help(onnxfold.{function.__name__}) lists them"
                    raise OptionTypeError(f"{function.__name__}() has no option '{name}': {hint}")
            return function(*args, **{**defaults, **kwargs})

        checked.__signature__ = plain.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return cast(F, checked)

    return decorate


def whole(name: str, value: Any, *, least: int, most: int) -> int:
    """Return a whole number, numpy's too, as an int."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise OptionTypeError(f"{name}={_short_text(value)} is not a whole number")
    number = int(value)
    if number < least:
        bound = "must not be negative" if least == 0 else f"must be at least {least}"
        raise ConfigError(f"{name}={_short_text(number)} {bound}")
    if number > most:
        raise ConfigError(f"{name}={_short_text(number)} must be at most {most}")
    return number


def step(name: str, value: Any, *, most: int) -> int | str:
    """Return a whole number from 1 up as an int, or 'auto'."""
    if isinstance(value, str) and value == "auto":
        return value
    if isinstance(value, str):
        raise OptionTypeError(f"{name}={_short_text(value)} is neither a whole number nor 'auto'")
    return whole(name, value, least=1, most=most)


#: Of the arguments of these names.
seed = partial(whole, "seed", least=0, most=LARGEST_SEED)
threads = partial(whole, "threads", least=1, most=MOST_THREADS)


def fraction(name: str, value: Any, *, zero: bool, meaning: str = "") -> float:
    """Return a number below 1 as a float: from 0 up with `zero`, else above 0."""
    real = number(name, value)
    if not (real >= 0.0 if zero else real > 0.0) or not real < 1.0:
        ending = f": it is {meaning}" if meaning else ""
        raise ConfigError(f"{name}={_short_text(value)} is outside {'[' if zero else '('}0, 1){ending}")
    return real


def bounded_number(name: str, value: Any, *, most: float, zero: bool = False) -> float:
    """Return a number of at most `most` as a float: from 0 up with `zero`, else above 0."""
    real = number(name, value)
    if not (real >= 0.0 if zero else real > 0.0) or not real <= most:
        raise ConfigError(
            f"{name}={_short_text(value)} must be {'at least' if zero else 'above'} 0 and at most {most:g}"
        )
    return real


def number(name: str, value: Any) -> float:
    """Return a real number as a float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise OptionTypeError(f"{name}={_short_text(value)} is not a number")
    try:
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf


def flag(name: str, value: Any) -> bool:
    """Return True or False; only numpy's booleans are accepted instead."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise OptionTypeError(f"{name}={_short_text(value)} is neither True nor False")
    return bool(value)


def text(name: str, value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise OptionTypeError(f"{name}={_short_text(value)} is not a string")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return several texts; one text is not taken for a sequence of letters."""
    return tuple(text(name, entry) for entry in entries(name, value))


def entries(name: str, value: Any) -> tuple[Any, ...]:
    """Return the entries of a sequence; a text and a mapping are none."""
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise OptionTypeError(f"{name}={_short_text(value)} is not a sequence")
    return tuple(value)


def path_text(name: str, value: Any) -> str:
    """Return a text, or the text of a path."""
    return text(name, os.fspath(value) if isinstance(value, os.PathLike) else value)


def path(name: str, value: Any) -> Path:
    """Return a path."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise OptionTypeError(f"{name}={_short_text(value)} is not a path")
    if "\0" in text:
        raise ConfigError(f"{name} contains a zero byte, which no path may")
    return Path(text)


def vocabulary(name: str, value: Any) -> int | str:
    """Return a number of tokens as an int, or a text: scripts or a file."""
    written = path_text(name, value) if isinstance(value, str | os.PathLike) else value
    if isinstance(written, str) and not (written.isdecimal() and len(written) < _DIGITS):
        return written
    return whole(name, int(written) if isinstance(written, str) else written, least=1, most=LARGEST_DIMENSION)


def choice(name: str, value: Any, known: Sequence[str]) -> str:
    """Return one of some texts."""
    if text(name, value) not in known:
        raise ConfigError(f"{name} '{value}' is unknown; use one of {', '.join(known)}")
    return text(name, value)


def by_name(name: str, value: Any) -> dict[str, Any]:
    """Return a mapping whose keys are texts as a dict."""
    if not isinstance(value, Mapping):
        raise OptionTypeError(f"{name}={_short_text(value)} is not a mapping by name")
    return {text(f"{name}: key", key): entry for key, entry in value.items()}


def shapes(name: str, value: Any) -> dict[str, tuple[int, ...]]:
    """Return shapes by the name of an input; every dimension is a whole number from 1 up."""
    shapes_by_name: dict[str, tuple[int, ...]] = {}
    for key, dims in by_name(name, value).items():
        label = f"{name} {key}: dimension"
        sizes = entries(f"{name} {key}", dims)
        shapes_by_name[key] = tuple(whole(label, d, least=1, most=LARGEST_DIMENSION) for d in sizes)
    return shapes_by_name


def wholes(name: str, value: Any, *, least: int, most: int) -> tuple[int, ...]:
    """Return a sequence of whole numbers as ints."""
    return tuple(whole(name, number, least=least, most=most) for number in entries(name, value))


def limit(name: str, value: Any) -> int | str:
    """Return a limit: a text as it is, or a whole number from 1 up as an int."""
    return value if isinstance(value, str) else whole(name, value, least=1, most=_LARGEST_LIMIT)


def memory(name: str, value: Any) -> int | str:
    """Return a number of bytes as it was written, its unit checked."""
    parse_bytes(limit(name, value))
    return limit(name, value)


def ratios(name: str, value: Any) -> dict[str, float]:
    """Return fractions by glob, from 0 up, as a dict of floats."""
    return {glob: fraction(f"ratio {glob}", share, zero=True) for glob, share in by_name(name, value).items()}


def path_or_mapping(name: str, value: Any, *, meaning: str) -> Any:
    """Return a path or a mapping as it is."""
    if not isinstance(value, str | os.PathLike | Mapping):
        raise OptionTypeError(f"{name} is the path of {meaning}, not {type(value).__name__}")
    return value


samples = partial(path_or_mapping, meaning="an .npz file or arrays by name")
latency_table = partial(path_or_mapping, meaning="a .json file or a table")


def cache(name: str, value: Any) -> str:
    """Return a folder, or a word, as a text; None is the word for none."""
    folder = NO_CACHE if value is None else path_text(name, value)
    if not folder or "\0" in folder:
        raise ConfigError(f"{name} is no folder's path: give one, 'default' or 'none'")
    return folder


def latency_limit(name: str, value: Any) -> str:
    """Return a limit of latency as text; a number alone is milliseconds."""
    if not isinstance(value, str):
        value = f"{bounded_number(name, value, most=_MOST_MILLISECONDS):.12g}ms"
    parse_latency(value)
    return str(value)


def _short_text(value: Any) -> str:
    """Return a short text of any value, for a message."""
    try:
        shown = repr(value)
    except Exception:  # a __repr__ may do anything, and a number of 5000 digits has none
        shown = ""
    return shown if 0 < len(shown) <= 60 else f"<{type(value).__name__}>"
