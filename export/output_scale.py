"""Natural scale of a model's outputs: what a difference is measured against.

Outputs of Sigmoid and Softmax lie between 0 and 1, so differences of them are measured against 1, wherever the inputs
happen to push them: a detector that finds nothing gives 4e-5 everywhere, and float32 near 1 rounds to 1e-7. Others are
measured against their own largest entry.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onnxfold.graph.tensors import Array
from onnxfold.graph.view import GraphView
from onnxfold.statistics.activations import Batches

Outputs = list[dict[str, Array]]

#: Operators whose results lie between 0 and 1.
_PROBABILITIES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
#: Operators that only move entries of their first input; of all inputs in `_JOINS`.
_MOVES = frozenset(
    {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Split", "Dropout"}
)
_JOINS = frozenset({"Concat"})
#: An output between 0 and 1 is excited where it reaches this.
_EXCITED = 0.1
#: Factors on the inputs that are tried for that.
_FACTORS = (3.0, 10.0, 30.0, 100.0)
#: Scale of an output between 0 and 1 that no input excites: ten roundings of float32 near 1 are within the tolerance,
#: and entries that are missing altogether are not.
_DULL = 0.01


class Scale(NamedTuple):
    """The value that differences of an output are measured against, and its name in messages."""

    value: float
    words: str


def probabilities(view: GraphView) -> frozenset[str]:
    """Return the outputs of a model whose entries lie between 0 and 1 by its operators."""
    return frozenset(name for name in view.output_names if _is_probability(view, name))


def scale_of(name: str, bounded: frozenset[str], own: Array, reached: float) -> Scale:
    """Return the scale of an output."""
    if name in bounded:
        return Scale(1.0, "the range 0 to 1") if reached >= _EXCITED else Scale(_DULL, f"{_DULL:g}")
    largest = float(np.abs(own[np.isfinite(own)]).max(initial=0.0))
    return Scale(largest or 1.0, "the largest entry")


def exciting_inputs(
    bounded: frozenset[str], batches: Batches, outputs: Outputs, run: Callable[[Batches], Outputs]
) -> tuple[Batches, Outputs]:
    """Return further inputs, and the outputs on them, where outputs between 0 and 1 are close to 0 everywhere."""
    more: Batches = []
    more_outputs: Outputs = []
    dull = {name for name in bounded if _largest_value(name, outputs) < _EXCITED}
    for factor in _FACTORS if dull else ():
        scaled = {n: (v * factor).astype(v.dtype) if v.dtype.kind == "f" else v for n, v in batches[0].items()}
        got = run([scaled])
        excited = {name for name in dull if _largest_value(name, got) >= _EXCITED}
        if excited and all(np.isfinite(v).all() for v in got[0].values() if v.dtype.kind == "f"):
            more.append(scaled)
            more_outputs += got
            dull -= excited
        if not dull:
            break
    return more, more_outputs


def largest_entries(names: frozenset[str], outputs: Outputs) -> dict[str, float]:
    """Return the largest entry of outputs over all batches."""
    return {name: _largest_value(name, outputs) for name in names}


def _largest_value(name: str, outputs: Outputs) -> float:
    return max((float(arrays[name].max(initial=0.0)) for arrays in outputs), default=0.0)


def _is_probability(view: GraphView, name: str) -> bool:
    node = view.producer(name)
    while node is not None and node.op_type in _MOVES:
        name = node.input[0]
        node = view.producer(name)
    if node is None:
        return False
    if node.op_type in _JOINS:
        return all(_is_probability(view, part) for part in node.input)
    return node.op_type in _PROBABILITIES
