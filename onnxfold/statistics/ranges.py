"""Ranges of activations over batches of inputs."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from onnxfold.errors import VerificationError
from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.progress import Progress, silent
from onnxfold.statistics.activations import Activations, Batches

#: Smallest and largest value of a tensor.
Range = tuple[np.float32, np.float32]


def activation_ranges(view: GraphView, inputs: Batches, progress: Progress = silent) -> dict[str, Range]:
    """Run a network once; return the smallest and largest value of every float32 tensor that it computes or is given.

    Tensors without elements have no range, and neither have those inside of bodies.
    """
    activations = Activations(view, inputs)
    ranges = {name: _range(name, values) for name, values in activations.values.items() if _is_measured(values)}
    for node in activations.walk(tell=partial(progress, "measure ranges")):
        activations.run(node)
        for name in filter(None, node.output):
            if _is_measured(activations.values[name]):
                ranges[name] = _range(name, activations.values[name])
    return ranges


def _is_measured(batches: Sequence[Array]) -> bool:
    return batches[0].dtype == np.float32 and any(values.size for values in batches)


def _range(name: str, batches: Sequence[Array]) -> Range:
    low = np.float32(min(values.min() for values in batches if values.size))
    high = np.float32(max(values.max() for values in batches if values.size))
    if not np.isfinite(low) or not np.isfinite(high):
        raise VerificationError(f"tensor '{name}' is infinite or NaN on these inputs: it has no range")
    return low, high
