"""A table of latencies: what a network and its layers take, at the widths that were measured.

The seconds of a layer are modelled by what it does: a constant, reading its inputs, writing its outputs, and products
of both, each with a factor that is not negative:

    seconds(c, m) = a + b c + d m + e c m

where c inputs and m outputs count in whole blocks. The factors fit the measured samples best in relative terms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfold.config import checks
from onnxfold.errors import ConfigError
from onnxfold.latency.micro_models import Sample

#: Terms of a layer's seconds: nothing, its inputs, its outputs, their product.
Factors = tuple[float, float, float, float]

#: Entries of a table of the largest networks, and seconds that no layer takes.
_MOST_ENTRIES = 200_000
_MOST_SECONDS = 1e5
_LARGEST_WIDTH = 2**31 - 1


@dataclass(frozen=True)
class LatencyTable:
    """Latencies of one network on one machine."""

    dense_s: float  # seconds of a run before the fold
    #: Seconds of every layer in the network, by the name of its first result; '' for what belongs to none.
    nodes: Mapping[str, float]
    layers: Mapping[str, Sequence[Sample]]  # by the key of its shape: inputs, outputs and seconds of a layer alone
    block: int = 8  # channels of convolutions that are computed at a time
    threads: int = 1  # threads inside an operator
    correction: float = 1.0  # seconds of a fold over what is computed for it from the other entries
    machine: Mapping[str, str] = field(default_factory=dict)  # the machine it was measured on

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, which :meth:`from_dict` reads."""
        return {
            "dense_s": self.dense_s, "correction": self.correction, "block": self.block, "threads": self.threads,
            "machine": dict(self.machine), "nodes": dict(self.nodes),
            "layers": {key: [list(sample) for sample in samples] for key, samples in self.layers.items()},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Any) -> "LatencyTable":
        """Read plain values: a table, or a report that holds one."""
        table = values.get("latency_table", values) if isinstance(values, Mapping) else None
        if not isinstance(table, Mapping):
            raise ConfigError("it holds no latency table: a report of a fold with --max-latency has one")
        return cls(
            dense_s=_seconds("dense_s", table.get("dense_s")),
            nodes={name: _seconds(name, s, zero=True) for name, s in _mapping(table, "nodes").items()},
            layers={key: samples_of(key, rows) for key, rows in _mapping(table, "layers").items()},
            block=_whole("block", table.get("block"), most=4096),
            threads=_whole("threads", table.get("threads"), most=4096),
            correction=_seconds("correction", table.get("correction")),
            machine={str(k): str(v) for k, v in _mapping(table, "machine").items()},
        )


def fit(samples: Sequence[Sample], *, block: int, is_depthwise: bool) -> Factors:
    """Return the factors a, b, d, e of the seconds of a layer."""
    inputs, outputs, seconds = (np.array(column, np.float64) for column in zip(*samples, strict=True))
    c = np.where(inputs < block, inputs, np.ceil(inputs / block) * block)
    m = np.ceil(outputs / block) * block
    columns = np.stack([np.ones_like(c), c, m, c * m], axis=1)
    if is_depthwise:
        columns[:, [1, 3]] = 0.0
    from scipy.optimize import nnls  # importing it takes a quarter of a second, and few commands need it

    scaled = columns / seconds[:, None]
    norms = np.maximum(np.linalg.norm(scaled, axis=0), 1e-300)
    factors, _ = nnls(scaled / norms, np.ones(len(seconds)))
    a, b, d, e = (float(value) for value in factors / norms)
    return a, b, d, e


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    entries = values.get(name)
    if not isinstance(entries, Mapping) or len(entries) > _MOST_ENTRIES:
        raise ConfigError(f"latency table: '{name}' is no table of a network")
    return entries


def samples_of(key: str, values: Any) -> tuple[Sample, ...]:
    """Read the samples of a layer."""
    if not isinstance(values, list) or len(values) > _MOST_ENTRIES:
        raise ConfigError(f"latency table: the samples of '{key}' are no list")
    if not all(isinstance(entry, list | tuple) and len(entry) == 3 for entry in values):
        raise ConfigError(f"latency table: a sample of '{key}' is not inputs, outputs and seconds")
    return tuple(
        (_whole(key, c, most=_LARGEST_WIDTH), _whole(key, m, most=_LARGEST_WIDTH), _seconds(key, s))
        for c, m, s in values
    )


def _whole(name: str, value: Any, *, most: int) -> int:
    return checks.whole(f"latency table: {name}", value, least=1, most=most)


def _seconds(name: str, value: Any, *, zero: bool = False) -> float:
    return checks.bounded_number(f"latency table: {name}", value, most=_MOST_SECONDS, zero=zero)
