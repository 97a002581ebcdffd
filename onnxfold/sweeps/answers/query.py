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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

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
    "count": {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9},
    "bytes": {"": 1.0, "b": 1.0, "k": 2.0**10, "kb": 2.0**10, "kib": 2.0**10, "m": 2.0**20, "mb": 2.0**20,
              "mib": 2.0**20, "g": 2.0**30, "gb": 2.0**30, "gib": 2.0**30},
    "time": {"": 1.0, "ms": 1.0, "us": 1e-3, "s": 1e3},
    "fraction": {"": 1.0, "%": 0.01},
    "number": {"": 1.0},
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """A comparison of a quantity with a number."""

    name: str  # the quantity and the sign, as they were written
    sign: str
    value: float  # the number, in the quantity's unit; or a part of the value before the fold
    is_ratio: bool  # whether it is such a part
    text: str  # the comparison as it was written

    def value_in(self, row: Row) -> float | None:
        """Return the value of the row that is compared; None where it is unknown."""
        quantity = QUANTITIES[self.name]
        return quantity.ratio(row) if self.is_ratio else quantity.value(row)

    def holds(self, row: Row) -> bool | None:
        """Return whether it is true; None where that is unknown."""
        value = self.value_in(row)
        return None if value is None else _SIGNS[self.sign](value, self.value)

    def comparisons(self) -> Iterator["Comparison"]:
        """Yield itself."""
        yield self


@dataclass(frozen=True)
class Word:
    """A comparison of a text with a word, which may hold ``*``."""

    name: str
    is_equal: bool
    value: str
    text: str

    def holds(self, row: Row) -> bool | None:
        """Return whether it is true; None where that is unknown."""
        from fnmatch import fnmatchcase

        value = getattr(row, self.name)
        return None if value is None else fnmatchcase(str(value), self.value) == self.is_equal

    def comparisons(self) -> Iterator["Comparison"]:
        """Yield itself."""
        yield self


@dataclass(frozen=True)
class Not:
    """The contrary of an expression."""

    of: "Expression"

    def holds(self, row: Row) -> bool | None:
        """Return whether the expression is false; None where that is unknown."""
        is_true = self.of.holds(row)
        return None if is_true is None else not is_true

    def comparisons(self) -> Iterator["Comparison"]:
        """Yield those of the expression."""
        yield from self.of.comparisons()


@dataclass(frozen=True)
class Joined:
    """Several expressions: all of them, or any."""

    parts: tuple["Expression", ...]
    all_of_them: bool

    def holds(self, row: Row) -> bool | None:
        """Return whether all or any parts hold; None where an unknown part decides."""
        answers = [part.holds(row) for part in self.parts]
        decisive = not self.all_of_them
        return decisive if decisive in answers else None if None in answers else not decisive

    def comparisons(self) -> Iterator["Comparison"]:
        """Yield those of all parts."""
        for part in self.parts:
            yield from part.comparisons()


Comparison = Number | Word
Expression = Number | Word | Not | Joined


def parse(text: str) -> Expression:
    """Return an expression.

    Examples
    --------
    >>> [comparison.text for comparison in parse("latency < 0.5x and not method == ifm").comparisons()]
    ['latency < 0.5x', 'method == ifm']
    """
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
        expression = self._parse_any()
        if self._at < len(self._tokens):
            raise self._error(f"'{self._next()}' was not expected")
        return expression

    def _parse_any(self) -> Expression:
        return self._parse_joined("or", lambda: self._parse_joined("and", self._parse_term))

    def _parse_joined(self, word: str, parse: Callable[[], Expression]) -> Expression:
        parts = [parse()]
        while self._takes(word):
            parts.append(parse())
        return parts[0] if len(parts) == 1 else Joined(tuple(parts), all_of_them=word == "and")

    def _parse_term(self) -> Expression:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("it is nested too deeply")
        if self._takes("not"):
            expression: Expression = Not(self._parse_term())
        elif self._takes("("):
            expression = self._parse_any()
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
        if self._at >= len(self._tokens):
            raise self._error(f"after '{name} {sign}' comes a value")
        token = self._tokens[self._at]
        self._at += 1
        text = f"{name} {sign} {token[0].strip()}"
        return self._word(name, sign, token, text) if name in TEXTS else self._number(name, sign, token, text)

    def _word(self, name: str, sign: str, token: re.Match[str], text: str) -> Word:
        if sign not in ("=", "==", "!="):
            raise self._error(f"'{name}' is a text: compare it by == or !=")
        if token["sign"]:
            raise self._error(f"'{token['sign']}' is no text")
        value = next(v for v in (token["single"], token["double"], token[0].strip()) if v is not None)
        return Word(name, sign != "!=", value, text)

    def _number(self, name: str, sign: str, token: re.Match[str], text: str) -> Number:
        if token["number"] is None:
            raise self._error(f"'{name}' is compared with a number, not with '{token[0].strip()}'")
        quantity, number, unit = QUANTITIES[name], float(token["number"]), token["unit"].lower()
        if unit == "x":
            return Number(name, sign, number, self._has_before(name, quantity), text)
        units = _UNITS[quantity.kind]
        if unit not in units:
            known = ", ".join(u for u in units if u) or "no unit"
            raise self._error(f"'{token[0].strip()}': '{name}' has {known}")
        value = number * units[unit]
        if quantity.kind == "fraction" and value > 1.0:
            raise self._error(f"'{name}' is between 0 and 1: write {number:g}% or {number / 100:g}")
        return Number(name, sign, value, False, text)

    def _has_before(self, name: str, quantity: Quantity) -> bool:
        if not hasattr(Row, f"{quantity.column}_before"):
            raise self._error(f"'{name}' has no value before the fold, so 'x' means nothing")
        return True

    def _next(self) -> str:
        return self._tokens[self._at][0].strip() if self._at < len(self._tokens) else ""

    def _takes(self, word: str) -> bool:
        if self._next().lower() != word:
            return False
        self._at += 1
        return True

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"--pick '{self._text}': {what}")
