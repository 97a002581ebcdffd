"""Samples of a user, parted into those that a fold is shown and those that judge it."""

import numpy as np

from onnxfold.graph.run.session import in_batches, sample_count
from onnxfold.graph.tensors import Array
from onnxfold.statistics.activations import Batches

_BATCH = 64
#: A user's samples that no fold is shown: one of so many, at most so many, where there are so many at least. Those that
#: a fold was fitted on agree too well where they are few for the widths of its layers.
_ONE_OF, _MOST_HELD_OUT, _LEAST_GIVEN = 5, 64, 64


def split_samples(arrays: dict[str, Array], fixed: int | None) -> tuple[dict[str, Array], Batches]:
    """Return the samples that a fold is shown, and whole batches that are held out, spread over all samples."""
    batch = fixed or 1
    count, batches = sample_count(arrays), sample_count(arrays) // batch
    held = min(batches // _ONE_OF, max(_MOST_HELD_OUT // batch, 1))
    if count < _LEAST_GIVEN or not held or any(v.ndim and len(v) != count for v in arrays.values()):
        return arrays, []
    apart = np.zeros(batches, bool)
    apart[((np.arange(held) + 0.5) * batches / held).astype(int)] = True
    apart = np.repeat(apart, batch)
    return select_samples(arrays, ~apart), list(in_batches(select_samples(arrays, apart), fixed or _BATCH))


def select_samples(arrays: dict[str, Array], samples: Array) -> dict[str, Array]:
    """Return some samples of arrays, by their indices or a mask; scalars belong to all."""
    return {name: values[samples] if values.ndim else values for name, values in arrays.items()}


def quarters(batch: dict[str, Array]) -> Batches:
    """Cut a batch into four; inputs without a batch axis stay in every part."""
    return list(in_batches(batch, max(-(-sample_count(batch) // 4), 1)))
