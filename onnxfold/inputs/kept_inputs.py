"""Generated inputs in the cache, for further folds of the same model."""

import json
import os
import time
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  # so that numpy knows the names of its types
import numpy as np

from onnxfold.files import Cache, key_of
from onnxfold.graph.fingerprint import fingerprint
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.machine.threads import usable_cores
from onnxfold.statistics.activations import Batches

_KIND = "inputs"
#: Beginnings of the names of variables that choose kernels of the libraries.
_KERNELS = ("ATEN_", "DNNL_", "KMP_", "MKL_", "NPY_", "OMP_NUM_", "ONEDNN_", "OPENBLAS_", "TORCH_")
#: What is made faster than this, in seconds, is made again: a cache full of it would hold little that helps.
WORTH_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class KeptInputs:
    """Inputs as they lie in the cache.

    Parameters
    ----------
    batches : list of dict
        Batches of inputs.
    told : dict
        What else is known about them, plain values.
    """

    batches: Batches
    told: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return one line of JSON, and the arrays one after the other."""
        described = [{n: [v.dtype.name, v.shape] for n, v in batch.items()} for batch in self.batches]
        head = json.dumps({"told": self.told, "batches": described})
        arrays = [np.ascontiguousarray(v).tobytes() for batch in self.batches for v in batch.values()]
        return b"".join([head.encode(), b"\n", *arrays])

    @classmethod
    def from_bytes(cls, content: bytes) -> "KeptInputs":
        """Read what :meth:`to_bytes` wrote."""
        end = content.index(b"\n")
        head = json.loads(content[:end])
        batches: Batches = []
        at = end + 1
        for described in head["batches"]:
            batch: dict[str, Array] = {}
            for name, (dtype, shape) in described.items():
                batch[name] = np.frombuffer(content, dtype, prod(shape), at).reshape(shape).copy()
                at += batch[name].nbytes
            batches.append(batch)
        return cls(batches, head["told"])


def _order_of_sums() -> str:
    """Return what decides in which order the libraries add up: threads, and kernels that the user asks for."""
    asked = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_KERNELS)]
    return " ".join([str(usable_cores()), *asked])


class Shelf:
    """The place in the cache for the inputs of one model and one request.

    Parameters
    ----------
    cache : Cache
        The cache.
    view : GraphView
        The normalised model.
    decided_by : object
        Everything else that decides the inputs; a value whose `repr` says all of it.
    """

    def __init__(self, cache: Cache, view: GraphView, decided_by: object) -> None:
        self._cache = cache
        self._began = time.monotonic()
        self._key = ""
        if cache.is_on:
            self._key = key_of({
                "model": fingerprint(view), "decided by": repr(decided_by), "sums": _order_of_sums(),
            })  # fmt: skip

    def find(self) -> KeptInputs | None:
        """Return what an earlier run made; None if there is nothing."""
        content = self._cache.get(_KIND, self._key) if self._key else None
        return None if content is None else KeptInputs.from_bytes(content)

    def keep(self, inputs: KeptInputs) -> None:
        """Keep inputs that took long to make."""
        if self._key and time.monotonic() - self._began >= WORTH_SECONDS:
            self._cache.put(_KIND, self._key, inputs.to_bytes())
