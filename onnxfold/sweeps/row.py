"""Rows: what is known of a job when it is finished, and the columns that people ask for."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

#: Values of the column `status`: a fold that was measured; one that cannot be made, which is not tried again; and one
#: whose workers died, which is tried again when the sweep is started again.
DONE, FAILED, LOST = "done", "failed", "lost"


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
    export_bytes: int | None = None
    export_difference: float | None = None
    export_error: str | None = None
    inputs: str | None = None
    warning: str | None = None
    notes: str | None = None
    seconds: float | None = None
    worker: str | None = None
    finished: str | None = None
    versions: str = "{}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values by column."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Row":
        """Return a row of plain values; columns that are not known here are dropped."""
        return cls(**{name: values[name] for name in COLUMN_TYPES if name in values})


#: Types of the columns: str, int or float; all but the first may be None.
COLUMN_TYPES: Mapping[str, type] = {
    f.name: next(kind for kind in (str, int, float) if f.type in (kind, kind | None)) for f in fields(Row)
}


@dataclass(frozen=True)
class Quantity:
    """A column that people ask for and draw.

    Parameters
    ----------
    column : str
        Name of the column.
    title : str
        Name with its unit, for people.
    kind : {'count', 'bytes', 'time', 'fraction', 'number'}
        What units a number may have beside it.
    more_is_better : bool
        Whether a larger value is better.
    """

    column: str
    title: str
    kind: str
    more_is_better: bool = False

    def value(self, row: Row) -> float | None:
        """Return the value in a row; None where it is unknown."""
        found = getattr(row, self.column)
        return None if found is None else float(found)

    def ratio(self, row: Row) -> float | None:
        """Return the value over that of the model before the fold; None where one is unknown."""
        if self.column == "latency_ms":
            return row.latency_ratio
        now, before = self.value(row), getattr(row, f"{self.column}_before", None)
        return None if now is None or not before else now / before


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
    "export_bytes": Quantity("export_bytes", "TFLite file (bytes)", "bytes"),
    "export_difference": Quantity("export_difference", "difference of the export", "number"),
    "seconds": Quantity("seconds", "seconds of the fold", "number"),
    "seed": Quantity("seed", "seed", "number"),
}

#: Text columns that people ask for.
TEXTS = ("method", "model", "goal", "cluster", "repair", "inputs", "agreement_on", "verdict", "key", "worker")

#: What a model takes, in the order in which it is shown; and how good a fold is, the best known first.
COSTS = ("latency", "weights", "macs", "size", "ram", "flash")
QUALITIES = ("accuracy", "agreement", "estimated_agreement", "relative_error")
