"""The maps of a fold between channels: compact for the report, with all matrices for a file."""

import io
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from onnxfold.folding.prepare import Folded
from onnxfold.graph.tensors import Array
from onnxfold.passes.repair.refits import Refits
from onnxfold.report import MergeMap

#: What the name of a file of matrices ends in.
NPZ = (".npz",)


def merge_maps(graphs: Sequence[Folded]) -> list[MergeMap]:
    """Return the channels that became one, for every group that lost some; channels that were rotated did not."""
    return [
        MergeMap(group.name, tuple(partition.labels.tolist()))
        for graph in graphs
        for group, partition in graph.plan
        if not partition.rotates
    ]


def merge_arrays(graphs: Sequence[Folded]) -> dict[str, Array]:
    """Return every matrix of a fold by name."""
    arrays: dict[str, Array] = {}
    for graph in graphs:
        for name, values in itertools.chain(_group_arrays(graph), _weight_arrays(graph.refits)):
            key = next(
                k for k in itertools.chain([name], (f"{name}#{i}" for i in itertools.count(2))) if k not in arrays
            )
            arrays[key] = values
    return arrays


def npz_of(arrays: dict[str, Array]) -> bytes:
    """Return the content of an ``.npz`` file."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type,unused-ignore]  # the stubs mistake keys for options
    return content.getvalue()


def _group_arrays(graph: Folded) -> Iterator[tuple[str, Array]]:
    for group, partition in graph.plan:
        yield f"P/{group.name}", partition.encode
        yield f"Q/{group.name}", partition.decode


def _weight_arrays(refits: Refits | None) -> Iterator[tuple[str, Array]]:
    if refits is None:
        return
    for weight, refit in refits.columns.items():
        yield f"B/{weight}", refit.matrix
        yield f"B.axis/{weight}", np.array([refit.axis.axis, refit.axis.blocks])
        yield f"B.positions/{weight}", refit.positions
        yield f"B.kept/{weight}", refit.representatives
    yield from ((f"D/{weight}", change) for weight, change in refits.taps.items())
    yield from ((f"g/{weight}", gain) for weight, gain in refits.gains.items())
