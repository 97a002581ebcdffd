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


def checked_limit(name: str, value: Any) -> str:
    """Return a limit of latency as text; a number alone is milliseconds."""
    if not isinstance(value, str):
        value = f"{checks.positive(name, value, most=_MOST_MILLISECONDS):.12g}ms"
    parse_latency(value)
    return str(value)


def checked_table(name: str, value: Any) -> Any:
    """Return a table of latencies, or the path of one; raise OptionTypeError if it is neither."""
    if not isinstance(value, str | PathLike | Mapping):
        raise OptionTypeError(f"{name} is the path of a .json file or a table, not {type(value).__name__}")
    return value


def plain_table(table: Any) -> str | None:
    """Return a table for reports: its path, or the hash of what it holds."""
    if isinstance(table, Mapping):
        return sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()
    return None if table is None else fspath(table)
