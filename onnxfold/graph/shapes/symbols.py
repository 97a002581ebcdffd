"""Symbols of dimensions that stand for sums of others."""

import re
from collections.abc import Iterable


def summands(name: str, names: Iterable[str]) -> list[str]:
    """Return the symbols whose sum a symbol is by its name, none where it is no sum."""
    known = list(names)
    parts = [part for part in re.split(r"\s*\+\s*", name) if part]
    if len(parts) < 2 and "total" in name.lower():
        past = next((n for n in known if "past" in n.lower()), "")
        parts = [past, next((n for n in known if "seq" in n.lower() and n not in (past, name)), "")]
    return parts if len(parts) > 1 and all(part in known for part in parts) else []
