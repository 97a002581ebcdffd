"""Generated inputs in the cache, for further folds of the same model."""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import ml_dtypes  # noqa: F401  # so that numpy knows the names of its types
import numpy as np

from onnxfold.files import Cache, key_of
from onnxfold.graph.files.provenance import fingerprint
from onnxfold.graph.run.session import InputInfo
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.inputs.sample_kinds import INVERTED, LEAVES, NOISE
from onnxfold.machine.threads import usable_cores
from onnxfold.statistics.activations import Batches

_KIND = "inputs"
#: Whether a value can be a fact about inputs.
FactCheck = Callable[[Any], bool]
#: Beginnings of the names of variables that choose kernels of the libraries.
_KERNELS = ("ATEN_", "DNNL_", "KMP_", "MKL_", "NPY_", "OMP_NUM_", "ONEDNN_", "OPENBLAS_", "TORCH_")
#: Inputs that are made faster than this, in seconds, are made again: a cache full of it would hold little that helps.
WORTH_SECONDS = 0.5
#: Least and most of all values; no input that is generated has others.
_RANGE = -1e12, 1e12


def is_text(value: object) -> bool:
    """Whether it is a text."""
    return isinstance(value, str)


#: Checks of the facts about inputs that were generated, not written, by fields of ModelInputs.
CHECKS_OF_GENERATED: Mapping[str, FactCheck] = {
    "kind": (INVERTED, LEAVES, NOISE).__contains__,
    "reason": is_text,
    "steps": lambda steps: isinstance(steps, list) and all(type(step) is int for step in steps),
    "notes": lambda notes: isinstance(notes, list) and all(map(is_text, notes)),
    "is_mirrored": lambda mirrored: isinstance(mirrored, bool),
}

#: Batches, and facts about them as plain values: how they were made, notes.
Kept = tuple[Batches, dict[str, Any]]


def to_bytes(batches: Batches, facts: dict[str, Any]) -> bytes:
    """Return inputs as they lie in the cache: one line of JSON, and the arrays one after the other."""
    described = [{n: [v.dtype.name, v.shape] for n, v in batch.items()} for batch in batches]
    head = json.dumps({"told": facts, "batches": described})
    arrays = [np.ascontiguousarray(v).tobytes() for batch in batches for v in batch.values()]
    return b"".join([head.encode(), b"\n", *arrays])


def from_bytes(
    content: bytes, infos: Sequence[InputInfo], fact_checks: Mapping[str, FactCheck],
    limits: tuple[float, float] = _RANGE,
) -> Kept:  # fmt: skip
    """Read what :func:`to_bytes` wrote."""
    line, _, arrays = content.partition(b"\n")
    head = json.loads(line)
    if not isinstance(head, dict) or not isinstance(head.get("batches"), list) or not head["batches"]:
        raise ValueError("it holds no batches")
    if not isinstance(head.get("told"), dict) or not all(
        is_possible(head["told"].get(name)) for name, is_possible in fact_checks.items()
    ):
        raise ValueError("it does not tell what its values are")
    batches, at, by_name = [], 0, {info.name: info for info in infos}
    for described in head["batches"]:
        batch: dict[str, Array] = {}
        if not isinstance(described, dict) or described.keys() != by_name.keys():
            raise ValueError("its inputs are not those of the model")
        for name, shape in described.items():
            made = _stored_shape(by_name[name], shape)
            batch[name] = np.frombuffer(arrays, by_name[name].dtype, prod(made), at).reshape(made).copy()
            at += batch[name].nbytes
            values = batch[name].astype(np.float64)
            if not ((values >= limits[0]) & (values <= limits[1])).all():
                raise ValueError(f"'{name}' has values that no input has")
        if len({len(batch[info.name]) for info in infos if info.shape[:1] == (None,)}) > 1:
            raise ValueError("its inputs are of different lengths")
        batches.append(batch)
    if at != len(arrays):
        raise ValueError("it has another length than it says")
    return batches, {name: head["told"][name] for name in fact_checks}


def _stored_shape(info: InputInfo, described: Any) -> tuple[int, ...]:
    """Return the shape that a file says that an input has, if it can have it; else raise a ValueError."""
    dtype, made = described if isinstance(described, list) and len(described) == 2 else (None, None)
    if dtype != info.dtype.name or not isinstance(made, list) or len(made) != len(info.shape):
        raise ValueError(f"'{info.name}' has another type or rank")
    for axis, (size, fixed) in enumerate(zip(made, info.shape, strict=True)):
        if type(size) is not int or size < (axis == 0 and fixed is None) or fixed not in (None, size):
            raise ValueError(f"'{info.name}' has another shape")
    return tuple(made)


class Shelf:
    """The place in the cache for the inputs of one model and one request."""

    def __init__(self, cache: Cache, view: GraphView, decided_by: object) -> None:
        self._cache = cache
        self._began = time.monotonic()
        self._key = ""
        if cache.is_on:
            # The order of sums depends on threads, and on kernels that the user asks for.
            asked = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(_KERNELS)]
            sums = " ".join([str(usable_cores()), *asked])
            self._key = key_of({"model": fingerprint(view), "decided by": repr(decided_by), "sums": sums})

    def find(
        self, infos: Sequence[InputInfo], fact_checks: Mapping[str, FactCheck], limits: tuple[float, float] = _RANGE
    ) -> Kept | None:
        """Return the inputs that an earlier run made; None if there are none, or if they do not pass the checks."""
        return self._cache.read(_KIND, self._key, lambda file: from_bytes(file, infos, fact_checks, limits))

    def keep(self, batches: Batches, facts: dict[str, Any]) -> None:
        """Keep inputs that took long to make."""
        if self._cache.is_on and time.monotonic() - self._began >= WORTH_SECONDS:
            self._cache.put(_KIND, self._key, to_bytes(batches, facts))
