"""Numbers with units: parsing and formatting."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from onnxfold.errors import ConfigError

_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)
#: Factors of units, in small letters.
BYTES = {"": 1.0, "b": 1.0} | {f"{unit}{b}": 1024.0**i for i, unit in enumerate("kmg", 1) for b in ("", "b", "ib")}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_TIMES = {"": 1e-3, "ms": 1e-3, "us": 1e-6, "s": 1.0}
_LONGEST_S = 1e5


def _parse(text: str | int, *, units: Mapping[str, float], expected: str) -> int:
    match = _NUMBER.fullmatch(str(text))
    factor = units.get(match[2].lower()) if match else None
    value = int(float(match[1]) * factor) if match and factor and len(match[1]) < 200 else 0
    if value < 1:
        raise ConfigError(f"'{text}' is not {expected}")
    return value


#: A number of bytes: K, KB and KiB are 1024 bytes, as data sheets of memories have it, likewise M and G.
parse_bytes = partial(_parse, units=BYTES, expected="bytes, for example 262144, 256K or 1.5M (K = 1024)")
#: A number of parameters or operations: K, M and G (or B) are thousands, millions and billions.
parse_count = partial(_parse, units=COUNTS, expected="a count, for example 1500000, 250K or 1.5M (K = 1000)")


@dataclass(frozen=True)
class LatencyLimit:
    """The longest that a run may take: `seconds`, or `ratio` of what it takes before the fold; the other is None."""

    seconds: float | None = None
    ratio: float | None = None

    def in_seconds(self, dense_s: float) -> float:
        """Return the limit in seconds, for a model that takes `dense_s` before the fold."""
        return self.seconds if self.seconds is not None else dense_s * (self.ratio or 0.0)


def parse_latency(value: str | float) -> LatencyLimit:
    """Return a limit of latency, such as 3.5ms or 0.6x; a number alone is milliseconds."""
    match = _NUMBER.fullmatch(str(value))
    unit = match[2].lower() if match else None
    number = float(match[1]) if match and len(match[1]) < 200 else 0.0
    if unit == "x" and 0.0 < number < 1.0:
        return LatencyLimit(ratio=number)
    if unit in _TIMES and 0.0 < number * _TIMES[unit] <= _LONGEST_S:
        return LatencyLimit(seconds=number * _TIMES[unit])
    raise ConfigError(f"'{value}' is no limit of latency: give a time such as 3.5ms, or a part of it such as 0.6x")


def show_bytes(count: int) -> str:
    """Return a number of bytes for people, K = 1024: '2.0 GiB', or '1000 bytes'."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:,.1f} {unit}" if count < 1024 ** (power + 2) else f"{count:.1e} bytes"
    return f"{count} bytes"


def show_seconds(seconds: float) -> str:
    """Return a time for people: '75 s', '8 minutes', or '2.5 hours'."""
    if seconds < 100.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} minutes" if seconds < 6000.0 else f"{seconds / 3600.0:.1f} hours"
