"""Rows: what is known of a job when it is finished, and the columns that people ask for."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from math import isfinite
from typing import Any

from onnxfold.config import NO_REFINEMENT

#: Values of the column `status`: a fold that was measured; one that cannot be made, which is not tried again; and one
#: whose workers died, which is tried again when the sweep is started again.
DONE, FAILED, LOST = "done", "failed", "lost"
#: Most characters of a value that is quoted.
_SHOWN = 40


def hash_of(parts: Mapping[str, Any]) -> str:
    """Return the hash of plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def key_of(setting: str, versions: Mapping[str, str]) -> str:
    """Return the key of a job: the hash of its setting, and of the versions that it is run by."""
    return hash_of({"setting": setting, "versions": dict(versions)})


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finished job; None is unknown, or not asked for.

    Counts of `weights` and `macs` are numbers; `size_bytes`, `ram` and `flash` bytes; latencies milliseconds per run of
    one sample; `agreement`, `accuracy` and `sparsity` fractions. Columns with `_before` are about the model before the
    fold.
    """

    key: str
    setting: str
    status: str
    model: str
    model_sha256: str
    goal: str
    method: str
    seed: int
    options: str = "{}"
    refine: str = NO_REFINEMENT
    cluster: str | None = None
    repair: str | None = None
    error_type: str | None = None
    error: str | None = None
    file: str | None = None
    command: str | None = None
    sparsity: float | None = None
    weights_before: int | None = None
    weights: int | None = None
    macs_before: int | None = None
    macs: int | None = None
    size_bytes_before: int | None = None
    size_bytes: int | None = None
    ram_before: int | None = None
    ram: int | None = None
    flash_before: int | None = None
    flash: int | None = None
    latency_ms_before: float | None = None
    latency_ms: float | None = None
    latency_ratio: float | None = None
    latency_spread: float | None = None
    latency_host: str | None = None
    agreement: float | None = None
    agreement_low: float | None = None
    agreement_high: float | None = None
    agreement_samples: int | None = None
    agreement_on: str | None = None
    relative_error: float | None = None
    verdict: str | None = None
    estimated_agreement: float | None = None
    estimated_agreement_low: float | None = None
    estimated_agreement_high: float | None = None
    accuracy_before: float | None = None
    accuracy: float | None = None
    inputs: str | None = None
    warning: str | None = None
    notes: str | None = None
    seconds: float | None = None
    worker: str | None = None
    finished: str | None = None
    versions: str = "{}"

    @property
    def how(self) -> str:
        """The method and the refinement, in words."""
        return self.method if self.refine == NO_REFINEMENT else f"{self.method}, refine {self.refine}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by column."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Row":
        """Return a row of plain values; columns that are not known here are dropped."""
        known = {name: value for name, value in values.items() if name in COLUMN_TYPES}
        for f in fields(cls):
            value = known.get(f.name, f.default)
            if value is MISSING or not _is_possible(f.name, value):
                what = "nothing" if value in (None, MISSING) else repr(str(value)[:_SHOWN])
                raise ValueError(f"{what} cannot be the '{f.name}' of a fold")
        row = cls(**known)
        if row.key != key_of(row.setting, json.loads(row.versions)):
            raise ValueError(f"the key {row.key[:_SHOWN]!r} is not that of the row's setting and versions")
        return row


#: Types of the columns: str, int or float; all but the first may be None.
COLUMN_TYPES: Mapping[str, type] = {
    f.name: next(kind for kind in (str, int, float) if f.type in (kind, kind | None)) for f in fields(Row)
}


_NULLABLE = {f.name for f in fields(Row) if f.default is None}
#: Columns whose values are more than numbers from zero on, or more than text.
_POSSIBLE: Mapping[str, Callable[[Any], bool]] = {
    "status": lambda value: value in (DONE, FAILED, LOST),
    "file": lambda value: (
        value.startswith("models/") and not {"", ".", ".."} & {*value.split("/")} and "\0" not in value
    ),
    "sparsity": lambda value: not value > 1.0,
    "options": lambda value: _is_object(value),
    "versions": lambda value: _is_object(value) and all(isinstance(v, str) for v in json.loads(value).values()),
}
_ROUNDING = 1e-6
_FRACTIONS = ("accuracy", "agreement", "estimated_agreement")


def _is_possible(name: str, value: Any) -> bool:
    kind = COLUMN_TYPES[name]
    if value is None:
        return name in _NULLABLE
    is_exact = type(value) is kind  # a bool is an int, too
    if not is_exact:
        return False
    if name in _POSSIBLE:
        return _POSSIBLE[name](value)
    if kind is str or not isfinite(value):  # what is not finite is shown as not known
        return True
    is_fraction = kind is float and name.startswith(_FRACTIONS)
    return bool(-_ROUNDING <= value <= 1 + _ROUNDING if is_fraction else value >= 0)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(frozen=True)
class Quantity:
    """A column that people ask for and draw."""

    column: str
    title: str  # name with its unit, for people
    kind: str  # what units a number may have beside it
    more_is_better: bool = False  # whether a larger value is better

    def value(self, row: Row) -> float | None:
        """Return the value in a row; None where it is unknown."""
        return _finite(getattr(row, self.column))

    def before(self, row: Row) -> float | None:
        """Return the value of the model before the fold; None where it is unknown."""
        return _finite(getattr(row, f"{self.column}_before", None))

    def ratio(self, row: Row) -> float | None:
        """Return the value over that of the model before the fold; None where one is unknown."""
        if self.column == "latency_ms":
            return _finite(row.latency_ratio)
        now, before = self.value(row), self.before(row)
        return None if now is None or not before else _finite(now / before)


def _finite(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(value)


#: By the names that people use, in the order of tables.
QUANTITIES: Mapping[str, Quantity] = {
    "weights": Quantity("weights", "weights", "count"),
    "macs": Quantity("macs", "MACs", "count"),
    "latency": Quantity("latency_ms", "latency (ms)", "time"),
    "size": Quantity("size_bytes", "size (bytes)", "bytes"),
    "ram": Quantity("ram", "RAM of activations (bytes)", "bytes"),
    "flash": Quantity("flash", "flash (bytes)", "bytes"),
    "accuracy": Quantity("accuracy", "accuracy", "fraction", more_is_better=True),
    "agreement": Quantity("agreement", "agreement", "fraction", more_is_better=True),
    "estimated_agreement": Quantity("estimated_agreement", "estimated agreement", "fraction", more_is_better=True),
    "relative_error": Quantity("relative_error", "relative error", "number"),
    "sparsity": Quantity("sparsity", "sparsity", "fraction", more_is_better=True),
    "seconds": Quantity("seconds", "seconds of the fold", "number"),
    "seed": Quantity("seed", "seed", "number"),
}

#: Text columns that people ask for.
TEXTS = ("method", "refine", "model", "goal", "cluster", "repair", "inputs", "agreement_on", "verdict", "key", "worker")

#: What a model takes, in the order in which it is shown; and how good a fold is, the best known first.
COSTS = ("latency", "weights", "macs", "size", "ram", "flash")
QUALITIES = ("accuracy", "agreement", "estimated_agreement", "relative_error")
