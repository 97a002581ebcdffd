"""The language of ``--pick``: comparisons of columns with numbers or words, joined by and, or, not and parentheses.

::

    expression = term ("or" term)*
    term       = factor ("and" factor)*
    factor     = "not" factor | "(" expression ")" | comparison
    comparison = column ("<" | "<=" | ">" | ">=" | "==" | "!=") value

A value of a number is a number with a unit perhaps: ``0.5x`` is half of what the model before the fold has, ``95%`` is
0.95, and ``3.5ms``, ``256K`` and ``1.5M`` mean what they mean to ``fold``. What is unknown in a row makes a comparison
neither true nor false, and a row is meant only where the whole expression is true.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from onnxfold.config.quantities import BYTES, COUNTS
from onnxfold.errors import ConfigError
from onnxfold.sweeps.row import QUANTITIES, TEXTS, Quantity, Row

_LONGEST = 2_000
_DEEPEST = 50
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>%|[A-Za-z]*)(?![\w.-])|(?P<sign><=|>=|==|!=|=|<|>|\(|\))"
    r"|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"|(?P<word>[A-Za-z_*][\w.*/-]*))",
    re.ASCII,
)
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "=": operator.eq,
    "!=": operator.ne,
}  # fmt: skip
#: Factors of units, by the kind of a quantity.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "count": COUNTS,
    "bytes": BYTES,
    "time": {"": 1.0, "ms": 1.0, "us": 1e-3, "s": 1e3},
    "fraction": {"": 1.0, "%": 0.01},
    "number": {"": 1.0},
}


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column with a number, or with a word that may hold ``*``."""

    text: str  # the comparison as it was written
    value: Callable[[Row], Any]  # the number or text of a row; None where it is unknown
    accepts: Callable[[Any], bool]  # whether the comparison is true of a known value
    number: float | None = None
    unit: str = ""

    @property
    def comparisons(self) -> list["Comparison"]:
        """Itself."""
        return [self]

    def holds(self, row: Row) -> bool | None:
        """Return whether it is true; None where that is unknown."""
        value = self.value(row)
        return None if value is None else self.accepts(value)

    def shown(self, row: Row) -> str:
        """Return the value of the row, in words."""
        value = self.value(row)
        return "unknown" if value is None else f"'{value}'" if self.number is None else f"{value:.4g}{self.unit}"

    def distance(self, row: Row) -> float:
        """Return how far the value is from the number, in parts of it, at most 1."""
        value = self.value(row)
        if value is None or self.number is None:
            return 1.0
        return float(min(abs(value - self.number) / max(abs(self.number), 1e-12), 1.0))


@dataclass(frozen=True)
class Joined:
    """Several expressions: all of them, or any; or the contrary of one."""

    word: str  # and, or, not
    parts: tuple["Expression", ...]

    def holds(self, row: Row) -> bool | None:
        """Return whether it is true; None where an unknown part decides."""
        answers = [part.holds(row) for part in self.parts]
        if self.word == "not":
            return None if answers[0] is None else not answers[0]
        decisive = self.word == "or"
        return decisive if decisive in answers else None if None in answers else not decisive

    @property
    def comparisons(self) -> list[Comparison]:
        """Those of all parts."""
        return [comparison for part in self.parts for comparison in part.comparisons]


Expression = Comparison | Joined


def parse(text: str) -> Expression:
    """Return an expression, such as that of 'latency < 0.5x and not method == ifm'."""
    if len(text) > _LONGEST:
        raise ConfigError(f"the expression is longer than {_LONGEST} characters: shorten it")
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[re.Match[str]] = []
        at = 0
        while text[at:].strip():
            token = _TOKEN.match(text, at)
            if token is None:
                raise self._error(f"'{text[at:].strip()[:20]}' is neither a column, a sign nor a number")
            self._tokens.append(token)
            at = token.end()
        self._at = self._depth = 0

    def whole(self) -> Expression:
        expression = self._parse_joined("or", "and")
        if self._at < len(self._tokens):
            raise self._error(f"'{self._next()}' was not expected")
        return expression

    def _parse_joined(self, *words: str) -> Expression:
        """Return terms joined by the first word, or by those that bind more."""
        if not words:
            return self._parse_term()
        parts = [self._parse_joined(*words[1:])]
        while self._takes(words[0]):
            parts.append(self._parse_joined(*words[1:]))
        return parts[0] if len(parts) == 1 else Joined(words[0], tuple(parts))

    def _parse_term(self) -> Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("it is nested too deeply")
        if self._takes("not"):
            expression: Expression = Joined("not", (self._parse_term(),))
        elif self._takes("("):
            expression = self._parse_joined("or", "and")
            if not self._takes(")"):
                raise self._error("a ')' is missing")
        else:
            expression = self._parse_comparison()
        self._depth -= 1
        return expression

    def _parse_comparison(self) -> Comparison:
        name = self._next().lower().replace("-", "_")
        if name not in QUANTITIES and name not in TEXTS:
            close = get_close_matches(name, [*QUANTITIES, *TEXTS], 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join([*QUANTITIES, *TEXTS])}"
            raise self._error(f"'{name}' is no column: {hint}" if name else "a comparison is missing")
        self._at += 1
        sign = self._next()
        if sign not in _SIGNS:
            raise self._error(f"after '{name}' comes a sign such as < or >=, not '{sign}'")
        self._at += 1
        value = self._next()
        if not value:
            raise self._error(f"after '{name} {sign}' comes a value")
        token = self._tokens[self._at]
        self._at += 1
        text = f"{name} {sign} {value}"
        if name in QUANTITIES:
            quantity, compare = QUANTITIES[name], _SIGNS[sign]
            number, unit = self._number(name, quantity, token)
            column = quantity.ratio if unit else quantity.value
            return Comparison(text, column, lambda value: compare(value, number), number, unit)
        if sign not in ("=", "==", "!="):
            raise self._error(f"'{name}' is a text: compare it by == or !=")
        if token["sign"]:
            raise self._error(f"'{value}' is no text")
        word = next(v for v in (token["single"], token["double"], value) if v is not None)
        return Comparison(text, attrgetter(name), lambda value: fnmatchcase(value, word) == (sign != "!="))

    def _number(self, name: str, quantity: Quantity, token: re.Match[str]) -> tuple[float, str]:
        """Return a number in the unit of a quantity, or a part of the value before the fold and an x."""
        if token["number"] is None:
            raise self._error(f"'{name}' is compared with a number, not with '{token[0].strip()}'")
        number, unit, units = float(token["number"]), token["unit"].lower(), _UNITS[quantity.kind]
        if unit == "x" and not hasattr(Row, f"{quantity.column}_before"):
            raise self._error(f"'{name}' has no value before the fold, so 'x' means nothing")
        if unit == "x":
            return number, unit
        if unit not in units:
            known = ", ".join(u for u in units if u) or "no unit"
            raise self._error(f"'{token[0].strip()}': '{name}' has {known}")
        value = number * units[unit]
        if quantity.kind == "fraction" and value > 1.0:
            raise self._error(f"'{name}' is between 0 and 1: write {number:g}% or {number / 100:g}")
        return value, ""

    def _next(self) -> str:
        return self._tokens[self._at][0].strip() if self._at < len(self._tokens) else ""

    def _takes(self, word: str) -> bool:
        if self._next().lower() != word:
            return False
        self._at += 1
        return True

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"--pick '{self._text}': {what}")
