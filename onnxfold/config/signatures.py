"""Signatures and help of the functions that take the options of a fold, made from the table of options."""

import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from inspect import signature
from typing import Any, TypeVar, get_type_hints

from onnxfold.config.checks import takes_keywords
from onnxfold.config.fold_config import OPTIONS, FoldConfig

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 120


def takes_options(names: Iterable[str]) -> Callable[[F], F]:
    """Return a decorator that gives ``**options`` of a function these options of a fold, and puts them into its help.

    Those that are parameters of the function already stay as they are.
    """

    def decorate(function: F) -> F:
        own = signature(function).parameters
        defaults = {name: _default(name) for name in names if name not in own}
        before, returns, after = (function.__doc__ or "").partition("\n\n    Returns\n")
        function.__doc__ = f"{before}\n{textwrap.indent(reference(defaults), '    ')}{returns}{after}"
        return takes_keywords(FoldConfig, **defaults)(function)

    return decorate


def reference(names: Iterable[str]) -> str:
    """Return the options as the entries of a docstring's parameters, with types."""
    types = get_type_hints(FoldConfig)
    entries = []
    for name in names:
        text = textwrap.fill(OPTIONS[name].reference_help, _WIDTH - 8, initial_indent="    ", subsequent_indent="    ")
        entries.append(f"{name} : {_as_text(types[name])}\n{text}")
    return "\n".join(entries)


def _as_text(kind: Any) -> str:
    """Return a type without the modules of its names."""
    if isinstance(kind, type):
        return kind.__name__
    return re.sub(r"ndarray\[.*?\]\]\]", "ndarray]", re.sub(r"\w+\.", "", str(kind)))


def _default(name: str) -> Any:
    entry = FoldConfig.__dataclass_fields__[name]
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


FoldConfig.__doc__ = (FoldConfig.__doc__ or "").replace(
    "    Raises\n", f"    Parameters\n    ----------\n{textwrap.indent(reference(OPTIONS), '    ')}\n\n    Raises\n", 1
)
