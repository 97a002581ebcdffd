"""The options of a fold for latency: their checks, and what is recorded of them."""

import json
from collections.abc import Mapping
from hashlib import sha256
from os import PathLike, fspath
from typing import Any

from onnxfold.config import checks
from onnxfold.config.quantities import parse_latency
from onnxfold.errors import OptionTypeError

_MOST_MILLISECONDS = 1e8


def checked_limit(value: Any) -> str | None:
    """Return a limit of latency as text; a number alone is milliseconds.

    Raises
    ------
    OptionTypeError
        If it is neither a number nor a text.
    ConfigError
        If it makes no sense.
    """
    if value is None:
        return None
    if not isinstance(value, str):
        value = f"{checks.positive('max_latency', value, most=_MOST_MILLISECONDS):.12g}ms"
    parse_latency(value)
    return str(value)


def check_table(value: Any) -> None:
    """Raise OptionTypeError if a value is neither a table of latencies nor a path."""
    if value is not None and not isinstance(value, str | PathLike | Mapping):
        raise OptionTypeError(f"latency_table is the path of a .json file or a table, not {type(value).__name__}")


def plain_table(table: Any) -> str | None:
    """Return a table for reports: its path, or the hash of what it holds."""
    if isinstance(table, Mapping):
        return sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()
    return None if table is None else fspath(table)
